! Lockstep for Fortran 2008: the calls that own_loop.f90 makes, and the types they take.
!
! A module to copy and extend. Each interface is the C declaration of include/lockstep/, word for
! word, and is documented there; types mirror the C structs field by field, in the same order.
! layout.f90 proves that they do: add a row there for each field and constant that you add here.
!
! Handles (ls_group *, ls_ddp *) are type(c_ptr). Indices are C's: the first parameter is 0. What
! the library keeps a pointer to (the list of parameters, their data and names) must be a target
! that lives as long as the handle.
module lockstep
    use, intrinsic :: iso_c_binding
    implicit none

    enum, bind(C) ! ls_status: the two that a program asks for; ls_message has the words of all
        enumerator :: LS_OK = 0, LS_ERR_ARGUMENT = 1
    end enum
    enum, bind(C) ! ls_dtype
        enumerator :: LS_DTYPE_F32 = 1, LS_DTYPE_F64 = 2
    end enum
    enum, bind(C) ! ls_strategy
        enumerator :: LS_STRATEGY_DDP = 0, LS_STRATEGY_ZERO1, LS_STRATEGY_ZERO2, LS_STRATEGY_ZERO3
    end enum
    enum, bind(C) ! ls_replicas
        enumerator :: LS_REPLICAS_SHARED = 0, LS_REPLICAS_PRIVATE
    end enum
    integer, parameter :: LS_MAX_DIMS = 8

    type, bind(C) :: ls_param
        type(c_ptr) :: name = c_null_ptr ! of characters that end with c_null_char
        integer(c_int64_t) :: count = 0
        integer(c_int) :: dtype = LS_DTYPE_F64
        integer(c_int32_t) :: flags = 0
        type(c_ptr) :: data = c_null_ptr
        type(c_ptr) :: grad = c_null_ptr
        integer(c_int) :: n_dims = 0
        integer(c_int64_t) :: shape(LS_MAX_DIMS) = 0 ! outermost first: Fortran's shape reversed
    end type

    type, bind(C) :: ls_unit_use
        integer(c_int) :: unit = 0
        integer(c_int) :: param = 0
        integer(c_int) :: flags = 0
    end type

    type, bind(C) :: ls_adamw_opts
        real(c_double) :: lr = 0
        real(c_double) :: beta1 = 0
        real(c_double) :: beta2 = 0
        real(c_double) :: epsilon = 0
        real(c_double) :: weight_decay = 0
        real(c_double) :: grad_scale = 1
        integer(c_int64_t) :: step = 0
    end type

    ! Take one from ls_ddp_opts_init, which fills in struct_size. Zero means default.
    type, bind(C) :: ls_ddp_opts
        integer(c_int32_t) :: struct_size = 0
        real(c_double) :: bucket_cap_mb = 0
        real(c_double) :: first_bucket_mb = 0
        integer(c_int) :: reproducible = 0
        integer(c_int) :: average = 0
        integer(c_int) :: find_unused_parameters = 0
        integer(c_int) :: static_graph = 0
        integer(c_int) :: keep_buckets = 0
        integer(c_int) :: no_overlap = 0
        integer(c_int) :: join = 0
        integer(c_int) :: nonfinite = 0
        type(c_ptr) :: hook = c_null_ptr
        type(c_ptr) :: buffers = c_null_ptr
        integer(c_int) :: n_buffers = 0
        integer(c_int) :: broadcast_buffers = 0
        integer(c_int) :: strategy = 0
        integer(c_int) :: replicas = 0
        type(c_ptr) :: lower_halves = c_null_ptr
        integer(c_int) :: shard_size = 0
        type(c_ptr) :: uses = c_null_ptr ! of ls_unit_use
        integer(c_int) :: n_uses = 0
        integer(c_int) :: prefetch = 0
        integer(c_int) :: reshard_after_forward = 0
        real(c_double) :: gather_limit_mb = 0
        integer(c_int64_t) :: persist_below = 0
        integer(c_int) :: offload = 0
        type(c_ptr) :: offload_dir = c_null_ptr ! of characters that end with c_null_char
        integer(c_int) :: reduce_dtype = 0
        type(c_funptr) :: fill = c_null_funptr
        type(c_ptr) :: fill_context = c_null_ptr
        integer(c_int) :: update_in_backward = 0
    end type

    interface
        ! ---- lockstep/status.h ----

        type(c_ptr) function ls_last_message() bind(C)
            import
        end function

        ! ---- lockstep/group.h ----

        integer(c_int) function ls_group_create(timeout_ms, group) bind(C)
            import
            integer(c_int64_t), value :: timeout_ms
            type(c_ptr), intent(out) :: group
        end function
        subroutine ls_group_destroy(group) bind(C)
            import
            type(c_ptr), value :: group
        end subroutine
        integer(c_int) function ls_group_rank(group) bind(C)
            import
            type(c_ptr), value :: group
        end function
        integer(c_int) function ls_group_world_size(group) bind(C)
            import
            type(c_ptr), value :: group
        end function

        ! ---- lockstep/optim.h ----

        real(c_double) function ls_clip_factor(norm, max_norm) bind(C)
            import
            real(c_double), value :: norm
            real(c_double), value :: max_norm
        end function

        ! ---- lockstep/parallel.h ----

        integer(c_int) function ls_ddp_create(group, params, n_params, opts, ddp) bind(C)
            import
            type(c_ptr), value :: group
            type(ls_param), intent(inout), target :: params(*)
            integer(c_int), value :: n_params
            type(ls_ddp_opts), intent(in) :: opts
            type(c_ptr), intent(inout) :: ddp ! written only on success
        end function
        subroutine ls_ddp_destroy(ddp) bind(C)
            import
            type(c_ptr), value :: ddp
        end subroutine
        integer(c_int) function ls_ddp_begin_step(ddp, n_micro_batches, scale) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int64_t), value :: n_micro_batches
            real(c_double), value :: scale
        end function
        integer(c_int) function ls_ddp_begin_backward(ddp) bind(C)
            import
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function ls_ddp_accumulates(ddp) bind(C)
            import
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function ls_ddp_grad_needed(ddp, index) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: index
        end function
        integer(c_int) function ls_ddp_grad_ready(ddp, index) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: index
        end function
        integer(c_int) function ls_ddp_end_backward(ddp) bind(C)
            import
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function ls_ddp_before_forward(ddp, unit) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: unit
        end function
        integer(c_int) function ls_ddp_after_forward(ddp, unit) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: unit
        end function
        integer(c_int) function ls_ddp_before_backward(ddp, unit) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: unit
        end function
        integer(c_int) function ls_ddp_after_backward(ddp, unit) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: unit
        end function
        integer(c_int) function ls_ddp_finish_step(ddp) bind(C)
            import
            type(c_ptr), value :: ddp
        end function
        integer(c_int) function ls_ddp_grad_norm(ddp, norm) bind(C)
            import
            type(c_ptr), value :: ddp
            real(c_double), intent(inout) :: norm
        end function
        integer(c_int) function ls_ddp_update(ddp, opts) bind(C)
            import
            type(c_ptr), value :: ddp
            type(ls_adamw_opts), intent(in) :: opts
        end function
        integer(c_int) function ls_ddp_plan_update(ddp, opts) bind(C)
            import
            type(c_ptr), value :: ddp
            type(ls_adamw_opts), intent(in) :: opts
        end function
        integer(c_int) function ls_ddp_get_values(ddp, index, values) bind(C)
            import
            type(c_ptr), value :: ddp
            integer(c_int), value :: index
            real(c_float), intent(inout) :: values(*)
        end function
    end interface

contains

    ! LS_DDP_OPTS_INIT: every option at its default.
    function ls_ddp_opts_init() result(opts)
        type(ls_ddp_opts) :: opts
        opts%struct_size = int(c_sizeof(opts), c_int32_t)
    end function

    ! The words of this thread's last failing call: who, what was expected, what was found.
    function ls_message() result(text)
        character(:), allocatable :: text
        character(kind=c_char), pointer :: found(:)
        type(c_ptr) :: message
        integer :: i
        interface
            integer(c_size_t) function strlen(text) bind(C)
                import
                type(c_ptr), value :: text
            end function
        end interface
        message = ls_last_message()
        call c_f_pointer(message, found, [strlen(message)])
        allocate (character(size(found)) :: text)
        do i = 1, size(found)
            text(i:i) = found(i)
        end do
    end function
end module
