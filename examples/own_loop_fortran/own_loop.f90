! A training loop of one's own in Fortran, made data parallel, with any sharding: examples/own_loop.
!
! A perceptron of three layers learns y = sin(x). Forward and backward are this program's; Lockstep
! is told where the parameters are, which layer uses which, and when a gradient is ready. What is
! sharded over the workers is decided in `options` alone: the loop is the same for all strategies,
! and so are the bits of what it learns.
program own_loop
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use lockstep
    implicit none

    integer, parameter :: WIDTH = 24, N_LAYERS = 3, BATCH = 24, N_STEPS = 400
    integer, parameter :: N(0:N_LAYERS) = [1, WIDTH, WIDTH, 1] ! channels
    character(kind=c_char), target :: names(3, N_LAYERS) = reshape( &
        ['w', '1', c_null_char, 'w', '2', c_null_char, 'w', '3', c_null_char], [3, N_LAYERS])
    type(ls_unit_use), target :: uses(N_LAYERS) = & ! layers are units; C counts from 0
        [ls_unit_use(0, 0), ls_unit_use(1, 1), ls_unit_use(2, 2)]
    real(c_float), target :: initial(WIDTH*(WIDTH + 1), N_LAYERS)
    type(ls_param), target :: params(N_LAYERS)
    ! Of each channel and sample: y(:, :, 0) is the input, y(:, :, l) what layer l makes of the one
    ! before, d(:, :, l) the derivative of the loss with respect to y(:, :, l) before tanh.
    real(c_float) :: y(WIDTH + 1, BATCH, 0:N_LAYERS), d(WIDTH, BATCH, 0:N_LAYERS)
    real(c_float) :: inputs(0:100), targets(0:100)
    type(c_ptr) :: group, ddp = c_null_ptr
    integer :: rank, n_ranks, first, last, l, k, step

    call try(ls_group_create(10000_c_int64_t, group))
    rank = ls_group_rank(group)
    n_ranks = ls_group_world_size(group)
    first = BATCH*rank/n_ranks + 1
    last = BATCH*(rank + 1)/n_ranks
    inputs = [(k/101.0*6 - 3, k=0, 100)]
    targets = sin(inputs)
    do l = 1, N_LAYERS ! rank 0's values will be everybody's
        initial(:, l) = [(0.4*sin(real(k*k + l + rank, c_float)), k=1, size(initial, 1))]
        params(l)%name = c_loc(names(1, l))
        params(l)%count = (N(l - 1) + 1)*N(l)
        params(l)%dtype = LS_DTYPE_F32
        params(l)%data = c_loc(initial(1, l))
    end do
    call try(ls_ddp_create(group, params, N_LAYERS, options(), ddp))
    do step = 0, N_STEPS - 1
        call train_step()
    end do
    call report()
    call ls_ddp_destroy(ddp)
    call ls_group_destroy(group)

contains

    subroutine try(status)
        integer(c_int), intent(in) :: status
        if (status == LS_OK) return
        write (error_unit, '(2a)') 'own_loop_fortran: ', ls_message()
        stop 1
    end subroutine

    function options() result(opts)
        type(ls_ddp_opts) :: opts
        character(8) :: strategy
        call get_command_argument(1, strategy)
        opts = ls_ddp_opts_init()
        select case (strategy)
        case ('ddp', '')
        case ('zero1')
            opts%strategy = LS_STRATEGY_ZERO1
        case ('zero2')
            opts%strategy = LS_STRATEGY_ZERO2
        case ('zero3') ! one copy for all workers of the machine
            opts%strategy = LS_STRATEGY_ZERO3
        case ('fsdp')
            opts%strategy = LS_STRATEGY_ZERO3
            opts%replicas = LS_REPLICAS_PRIVATE
            opts%uses = c_loc(uses)
            opts%n_uses = size(uses)
        case default
            write (error_unit, '(a)') 'own_loop_fortran [ddp|zero1|zero2|zero3|fsdp]'
            stop 2
        end select
    end function

    ! A layer's matrix, or its gradient: a column for each input, and one for the bias, whose input
    ! is 1. Asked for anew each time, because both may move.
    function matrix(at, l) result(w)
        type(c_ptr), intent(in) :: at
        integer, intent(in) :: l
        real(c_float), pointer :: w(:, :)
        call c_f_pointer(at, w, [N(l), N(l - 1) + 1])
    end function

    subroutine forward_layer(l, m)
        integer, intent(in) :: l, m
        real(c_float), pointer :: w(:, :)
        integer :: s, i
        w => matrix(params(l)%data, l)
        do s = 1, m
            y(N(l - 1) + 1, s, l - 1) = 1
            y(1:N(l), s, l) = 0
            do i = 1, N(l - 1) + 1
                y(1:N(l), s, l) = y(1:N(l), s, l) + w(:, i)*y(i, s, l - 1)
            end do
            if (l < N_LAYERS) y(1:N(l), s, l) = tanh(y(1:N(l), s, l))
        end do
    end subroutine

    ! By halves, as sums over workers are: 1, 2, 4 and 8 workers get the same bits.
    pure recursive real(c_float) function total(a) result(t)
        real(c_float), intent(in) :: a(:)
        t = 0
        if (size(a) == 1) t = a(1)
        if (size(a) > 1) t = total(a(:size(a)/2)) + total(a(size(a)/2 + 1:))
    end function

    subroutine backward_layer(l, m)
        integer, intent(in) :: l, m
        real(c_float), pointer :: w(:, :), dw(:, :)
        integer :: o, i, s
        w => matrix(params(l)%data, l)
        dw => matrix(params(l)%grad, l)
        do i = 1, N(l - 1) + 1
            do o = 1, N(l)
                dw(o, i) = total(d(o, 1:m, l)*y(i, 1:m, l - 1))
            end do
        end do
        do s = 1, m
            do i = 1, N(l - 1)
                d(i, s, l - 1) = dot_product(w(:, i), d(1:N(l), s, l))*(1 - y(i, s, l - 1)**2)
            end do
        end do
    end subroutine

    ! ---- the loop ----

    subroutine forward(m)
        integer, intent(in) :: m
        integer :: l
        do l = 1, N_LAYERS
            call try(ls_ddp_before_forward(ddp, l - 1)) ! params(l)%data is there …
            call forward_layer(l, m)
            call try(ls_ddp_after_forward(ddp, l - 1)) ! … and may be gone
        end do
    end subroutine

    subroutine backward(m)
        integer, intent(in) :: m
        integer :: l
        call try(ls_ddp_begin_backward(ddp))
        do l = N_LAYERS, 1, -1
            call try(ls_ddp_before_backward(ddp, l - 1))
            call try(ls_ddp_grad_needed(ddp, l - 1)) ! params(l)%grad is there, to be overwritten
            call backward_layer(l, m)
            call try(ls_ddp_grad_ready(ddp, l - 1))
            call try(ls_ddp_after_backward(ddp, l - 1)) ! it travels meanwhile
        end do
        call try(ls_ddp_end_backward(ddp))
    end subroutine

    ! This worker has samples first to last of the step's batch, its only micro-batch.
    subroutine train_step()
        type(ls_adamw_opts) :: adamw
        real(c_double) :: norm
        integer :: at(BATCH), s, m
        m = last - first + 1
        call try(ls_ddp_begin_step(ddp, 1_c_int64_t, 1.0_c_double/BATCH))
        ! any rule for samples will do that all workers share
        at(1:m) = [(mod((step*BATCH + first + s - 2)*37, size(inputs)), s=1, m)]
        y(1, 1:m, 0) = inputs(at(1:m))
        call forward(m)
        d(1, 1:m, N_LAYERS) = y(1, 1:m, N_LAYERS) - targets(at(1:m))
        call backward(m)
        call try(ls_ddp_finish_step(ddp)) ! gradients are means over the batch
        call try(ls_ddp_grad_norm(ddp, norm))
        adamw = ls_adamw_opts(lr=0.01_c_double*(1 - real(step, c_double)/N_STEPS), &
            beta1=0.9_c_double, beta2=0.99_c_double, epsilon=1e-8_c_double, &
            weight_decay=0.01_c_double, grad_scale=ls_clip_factor(norm, 1.0_c_double))
        call try(ls_ddp_update(ddp, adamw))
    end subroutine

    subroutine report()
        real(c_float) :: values(size(initial, 1)), loss
        integer :: hash, l, k
        y(1, :, 0) = inputs(0:4*BATCH - 1:4)
        call forward(BATCH)
        loss = sum((y(1, :, N_LAYERS) - targets(0:4*BATCH - 1:4))**2)/BATCH
        hash = 0
        do l = 1, N_LAYERS
            call try(ls_ddp_get_values(ddp, l - 1, values)) ! whole, whatever is sharded
            do k = 1, int(params(l)%count)
                hash = ieor(ishftc(hash, 5), transfer(values(k), hash))
            end do
        end do
        print '(2(a, i0), a, es14.8, a, z8.8)', 'rank ', rank, ' of ', n_ranks, ': loss ', loss, &
            ', weights ', hash
    end subroutine
end program
