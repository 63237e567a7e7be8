# The short way in: `make` prints what there is. Everything lands in build/, made by CMake; what the
# system lacks is installed first by tools/setup.sh (as root; others are told the command).
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

# In CI, warnings are errors. LS_TESTS is off only for a first build by somebody who just wants the
# program: it needs neither cmocka nor a C++ compiler then.
first = $(if $(wildcard build/CMakeCache.txt),,1)
configure = cmake -S . -B build --log-level=WARNING $(if $(CI),-DLS_WERROR=ON)
# CMake's own make must not take its orders (-j, -n) from this one.
compile = env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL cmake --build build --parallel $(JOBS)

.PHONY: help build demo test bench bench-peers bench-step bench-ddp bench-sharding install clean

help:
	@echo 'make build     build build/lockstep and the library (build/lib/)'
	@echo 'make demo      train a small GPT on the King James Bible with two workers: a few minutes'
	@echo 'make test      build and run all tests'
	@echo 'make bench     time all-reduce and training on this machine: a few minutes'
	@echo 'make bench-peers   time collectives against Open MPI, MPICH and Gloo, if installed'
	@echo 'make bench-step    time training steps against PyTorch, if PYTHON has it'
	@echo 'make bench-ddp     time two workers against two apart and against PyTorch, and overlap'
	@echo 'make bench-sharding  time and memory of ZeRO and FSDP against ddp and against PyTorch'
	@echo 'make install   into PREFIX ($(PREFIX)), below DESTDIR if set'
	@echo 'make clean     remove build/'
	@echo
	@echo 'What is missing on Debian or Ubuntu is installed first by tools/setup.sh.'
	@echo 'Development builds (sanitizers, warnings as errors): cmake --list-presets'

build:
	@tools/setup.sh build
	@$(configure) $(if $(first),-DLS_TESTS=OFF)
	@$(compile) --target lockstep_product

demo:
	@tools/setup.sh build demo
	@$(MAKE) --no-print-directory build
	@tools/demo.sh

test:
	@tools/setup.sh build test
	@$(configure) -DLS_TESTS=ON
	@$(compile)
	@tools/test.sh

bench:
	@$(MAKE) --no-print-directory build
	@$(compile) --target bench_lines
	@bench/run.sh

# Takes the libraries that are there; `tools/setup.sh bench` installs all of them.
bench-peers:
	@$(MAKE) --no-print-directory build
	@$(compile) --target bench_peers
	@bench/peers/run.sh

# PYTHON: a Python 3 with torch; OPTIONS: of bench/step/run.py.
bench-step:
	@$(MAKE) --no-print-directory build
	@bench/step/run.py build/lockstep --python '$(PYTHON)' $(OPTIONS)

# The same for two workers: OPTIONS of bench/ddp/run.py.
bench-ddp:
	@$(MAKE) --no-print-directory build
	@$(compile) --target bench_overlap
	@build/bench/overlap
	@echo
	@bench/ddp/run.py build/lockstep --python '$(PYTHON)' $(OPTIONS)

# The strategies that shard: OPTIONS of bench/sharding/run.py.
bench-sharding:
	@$(MAKE) --no-print-directory build
	@bench/sharding/run.py build/lockstep --python '$(PYTHON)' $(OPTIONS)

# Does not build again what is there: `sudo make install` must leave no files of root in build/.
install:
	@test -x build/lockstep || $(MAKE) --no-print-directory build
	@cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build
