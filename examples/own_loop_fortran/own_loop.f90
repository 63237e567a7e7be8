! A training loop of one's own in Fortran, made data parallel: examples/own_loop in double precision.
!
! A perceptron with one hidden layer learns y = sin(x) by plain SGD. Model, gradients and update are
! this program's; Lockstep is told where the parameters are and when a gradient is ready, and
! averages the gradients over all workers. A step is 8 micro-batches whatever the number of workers,
! and `reproducible` adds them in a fixed tree: 1, 2, 4 and 8 workers end with the same bits.
program own_loop
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use lockstep
    implicit none

    integer, parameter :: HIDDEN = 24, MICRO_BATCHES = 8, SAMPLES = 4, STEPS = 3000
    real(c_double), parameter :: LEARNING_RATE = 0.05_c_double
    enum, bind(C) ! places in params
        enumerator :: AT_W1 = 1, AT_B1, AT_W2, AT_B2
    end enum
    character(kind=c_char), target :: names(3, AT_B2) = reshape( &
        ['w', '1', c_null_char, 'b', '1', c_null_char, &
         'w', '2', c_null_char, 'b', '2', c_null_char], [3, int(AT_B2)])
    real(c_double), target :: w1(HIDDEN), b1(HIDDEN), w2(HIDDEN), b2(1)
    type(ls_param), target :: params(AT_B2)
    type(ls_ddp_opts) :: opts
    type(c_ptr) :: group, ddp = c_null_ptr
    integer :: rank, n_ranks, j

    call try(ls_group_create(10000_c_int64_t, group))
    rank = ls_group_rank(group)
    n_ranks = ls_group_world_size(group)
    w1 = 1 + rank ! rank 0's values will be everybody's
    b1 = [(0.25_c_double*(j - 1) - 3, j=1, HIDDEN)]
    w2 = 0
    b2 = 0
    params(AT_W1) = described(AT_W1, w1)
    params(AT_B1) = described(AT_B1, b1)
    params(AT_W2) = described(AT_W2, w2)
    params(AT_B2) = described(AT_B2, b2)
    opts = ls_ddp_opts_init()
    opts%reproducible = 1
    call try(ls_ddp_create(group, params, size(params), opts, ddp))
    call train()
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

    type(ls_param) function described(at, values) result(param)
        integer, intent(in) :: at
        real(c_double), target, intent(in) :: values(:)
        param%name = c_loc(names(1, at))
        param%count = size(values)
        param%dtype = LS_DTYPE_F64
        param%data = c_loc(values)
    end function

    ! Asked for anew each time: gradients may move between the first two steps.
    function gradient_of(at) result(grad)
        integer, intent(in) :: at
        real(c_double), pointer :: grad(:)
        call c_f_pointer(params(at)%grad, grad, [params(at)%count])
    end function

    ! The same, with what this micro-batch is to be added to.
    function started(at) result(grad)
        integer, intent(in) :: at
        real(c_double), pointer :: grad(:)
        grad => gradient_of(at)
        if (ls_ddp_accumulates(ddp) == 0) grad = 0
    end function

    subroutine predict(x, h, y)
        real(c_double), intent(in) :: x
        real(c_double), intent(out) :: h(HIDDEN), y
        h = tanh(w1*x + b1)
        y = b2(1) + dot_product(w2, h)
    end subroutine

    ! Input of a sample: any rule will do that all workers share.
    pure real(c_double) function input_of(sample)
        integer, intent(in) :: sample
        input_of = mod(sample*37, 101)/101.0_c_double*6 - 3
    end function

    ! Gradients of half the squared error, output layer first: its all-reduce starts while those of
    ! the hidden layer are computed.
    subroutine train_micro_batch(micro_batch)
        integer, intent(in) :: micro_batch
        real(c_double) :: x(SAMPLES), h(HIDDEN, SAMPLES), error(SAMPLES), y, d(HIDDEN)
        real(c_double), pointer :: d_w1(:), d_b1(:), d_w2(:), d_b2(:)
        integer :: s
        do s = 1, SAMPLES
            x(s) = input_of(micro_batch*SAMPLES + s - 1)
            call predict(x(s), h(:, s), y)
            error(s) = y - sin(x(s))
        end do
        call try(ls_ddp_begin_backward(ddp))
        d_b2 => started(AT_B2)
        d_w2 => started(AT_W2)
        do s = 1, SAMPLES
            d_b2 = d_b2 + error(s)
            d_w2 = d_w2 + error(s)*h(:, s)
        end do
        call try(ls_ddp_grad_ready(ddp, AT_B2 - 1)) ! C counts from 0
        call try(ls_ddp_grad_ready(ddp, AT_W2 - 1))
        d_b1 => started(AT_B1)
        d_w1 => started(AT_W1)
        do s = 1, SAMPLES
            d = error(s)*w2*(1 - h(:, s)**2)
            d_b1 = d_b1 + d
            d_w1 = d_w1 + d*x(s)
        end do
        call try(ls_ddp_grad_ready(ddp, AT_B1 - 1))
        call try(ls_ddp_grad_ready(ddp, AT_W1 - 1))
        call try(ls_ddp_end_backward(ddp))
    end subroutine

    subroutine train()
        real(c_double), parameter :: SCALE = 1.0_c_double/(MICRO_BATCHES*SAMPLES)
        integer :: first, end, step, m
        first = MICRO_BATCHES*rank/n_ranks
        end = MICRO_BATCHES*(rank + 1)/n_ranks
        do step = 0, STEPS - 1
            call try(ls_ddp_begin_step(ddp, int(end - first, c_int64_t), SCALE))
            do m = first, end - 1
                call train_micro_batch(step*MICRO_BATCHES + m)
            end do
            call try(ls_ddp_finish_step(ddp))
            w1 = w1 - LEARNING_RATE*gradient_of(AT_W1)
            b1 = b1 - LEARNING_RATE*gradient_of(AT_B1)
            w2 = w2 - LEARNING_RATE*gradient_of(AT_W2)
            b2 = b2 - LEARNING_RATE*gradient_of(AT_B2)
        end do
    end subroutine

    subroutine report()
        real(c_double) :: h(HIDDEN), y, loss
        integer :: s
        loss = 0
        do s = 0, 100
            call predict(input_of(s), h, y)
            loss = loss + (y - sin(input_of(s)))**2/101
        end do
        print '(2(a, i0), a, f20.18, a, f0.16)', 'rank ', rank, ' of ', n_ranks, ': loss ', loss, &
            ', w1(1) ', w1(1)
    end subroutine
end program
