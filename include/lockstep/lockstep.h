/* Lockstep: data-parallel training. This header takes in all public ones. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/dtype.h>
#include <lockstep/event.h>
#include <lockstep/group.h>
#include <lockstep/hook.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/param.h>
#include <lockstep/sampler.h>
#include <lockstep/status.h>
#include <lockstep/version.h>

#endif
