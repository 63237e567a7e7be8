! The types and constants of lockstep.f90 are those of the C headers: each list below is compared
! with the same list in layout.c (size of a struct and offsets of its fields, then numbers), and
! the library itself takes the options that ls_ddp_opts_init makes and refuses others.
module layout_of_c
    use, intrinsic :: iso_c_binding
    implicit none
    integer, parameter :: N_PARAM = 9, N_OPTS = 32, N_USE = 4, N_ADAMW = 8, N_NUMBERS = 11
    integer(c_int64_t), bind(C) :: layout_param(N_PARAM), layout_opts(N_OPTS)
    integer(c_int64_t), bind(C) :: layout_use(N_USE), layout_adamw(N_ADAMW)
    integer(c_int64_t), bind(C) :: layout_numbers(N_NUMBERS), layout_counts(5)
end module

program layout
    use, intrinsic :: iso_c_binding
    use lockstep
    use layout_of_c
    implicit none
    integer :: n_faults = 0
    type(ls_param), target :: p
    type(ls_ddp_opts), target :: o
    type(ls_unit_use), target :: u
    type(ls_adamw_opts), target :: a
    integer(c_intptr_t) :: base

    call compare('number of entries', layout_counts, &
        [N_PARAM, N_OPTS, N_USE, N_ADAMW, N_NUMBERS])

    base = address(c_loc(p))
    call compare('ls_param', layout_param, [int(c_sizeof(p)), at(c_loc(p%name)), &
        at(c_loc(p%count)), at(c_loc(p%dtype)), at(c_loc(p%flags)), at(c_loc(p%data)), &
        at(c_loc(p%grad)), at(c_loc(p%n_dims)), at(c_loc(p%shape))])

    base = address(c_loc(o))
    call compare('ls_ddp_opts', layout_opts, [int(c_sizeof(o)), at(c_loc(o%struct_size)), &
        at(c_loc(o%bucket_cap_mb)), at(c_loc(o%first_bucket_mb)), at(c_loc(o%reproducible)), &
        at(c_loc(o%average)), at(c_loc(o%find_unused_parameters)), at(c_loc(o%static_graph)), &
        at(c_loc(o%keep_buckets)), at(c_loc(o%no_overlap)), at(c_loc(o%join)), &
        at(c_loc(o%nonfinite)), at(c_loc(o%hook)), at(c_loc(o%buffers)), at(c_loc(o%n_buffers)), &
        at(c_loc(o%broadcast_buffers)), at(c_loc(o%strategy)), at(c_loc(o%replicas)), &
        at(c_loc(o%lower_halves)), at(c_loc(o%shard_size)), at(c_loc(o%uses)), at(c_loc(o%n_uses)), &
        at(c_loc(o%prefetch)), at(c_loc(o%reshard_after_forward)), &
        at(c_loc(o%gather_limit_mb)), at(c_loc(o%persist_below)), at(c_loc(o%offload)), &
        at(c_loc(o%offload_dir)), at(c_loc(o%reduce_dtype)), at(c_loc(o%fill)), &
        at(c_loc(o%fill_context)), at(c_loc(o%update_in_backward))])

    base = address(c_loc(u))
    call compare('ls_unit_use', layout_use, [int(c_sizeof(u)), at(c_loc(u%unit)), &
        at(c_loc(u%param)), at(c_loc(u%flags))])

    base = address(c_loc(a))
    call compare('ls_adamw_opts', layout_adamw, [int(c_sizeof(a)), at(c_loc(a%lr)), &
        at(c_loc(a%beta1)), at(c_loc(a%beta2)), at(c_loc(a%epsilon)), &
        at(c_loc(a%weight_decay)), at(c_loc(a%grad_scale)), at(c_loc(a%step))])

    call compare('constants', layout_numbers, [int(LS_OK), int(LS_ERR_ARGUMENT), &
        int(LS_DTYPE_F32), int(LS_DTYPE_F64), LS_MAX_DIMS, int(LS_STRATEGY_DDP), &
        int(LS_STRATEGY_ZERO1), int(LS_STRATEGY_ZERO2), int(LS_STRATEGY_ZERO3), &
        int(LS_REPLICAS_SHARED), int(LS_REPLICAS_PRIVATE)])

    if (n_faults == 0) call check_options()
    if (n_faults > 0) stop 1

contains

    integer(c_intptr_t) function address(ptr)
        type(c_ptr), intent(in) :: ptr
        address = transfer(ptr, address)
    end function

    integer function at(ptr) ! offset in the object at base
        type(c_ptr), intent(in) :: ptr
        at = int(address(ptr) - base)
    end function

    subroutine fault(text)
        character(*), intent(in) :: text
        print '(a)', text
        n_faults = n_faults + 1
    end subroutine

    subroutine compare(what, expected, found)
        character(*), intent(in) :: what
        integer(c_int64_t), intent(in) :: expected(:)
        integer, intent(in) :: found(:)
        character(12) :: text
        integer :: i
        do i = 1, size(expected)
            if (expected(i) == found(i)) cycle
            write (text, '(i0)') i
            call fault(what//', entry '//trim(text)//': C and Fortran differ')
        end do
    end subroutine

    subroutine check_options()
        character(kind=c_char), target :: name(2) = ['x', c_null_char]
        real(c_double), target :: x(1) = 0
        type(ls_param), target :: params(1)
        type(c_ptr) :: group, ddp
        params(1) = ls_param(name=c_loc(name), count=1, data=c_loc(x))
        if (ls_group_create(10000_c_int64_t, group) /= LS_OK) then
            call fault('ls_group_create: '//ls_message())
            return
        end if
        o = ls_ddp_opts_init()
        if (ls_ddp_create(group, params, 1, o, ddp) == LS_OK) then
            call ls_ddp_destroy(ddp)
        else
            call fault('options of ls_ddp_opts_init: expected to be taken, found: '//ls_message())
        end if
        o%struct_size = o%struct_size - 8
        if (ls_ddp_create(group, params, 1, o, ddp) /= LS_ERR_ARGUMENT) &
            call fault('options of a wrong size: expected a refusal, found none')
        call ls_group_destroy(group)
    end subroutine
end program
