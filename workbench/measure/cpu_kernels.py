"""All numba code of the CPU runtime: atomics, eight-lane vectors, tile bodies, and the loop that every worker runs.

One module, and so longer than the others: numba keys its on-disk cache on the content of the defining file alone, so
a body that lived elsewhere could change without the cached runtime noticing. For the same reason every constant that
compiled code reads is defined here. Bodies work on raw pointers: numba wraps negative array indices, which costs up
to 2× in loops this small; `cpu_runtime.Launch` checks every index before a pointer is used.

Vectors are explicit (``Vec``, eight float32 lanes, lowered to what the machine has), so sums have one fixed order,
no fast-math is needed, and NaN and infinity keep their meaning. Offsets are elements; ranges are half-open.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,misc,call-arg,var-annotated"
# Reason: numba's decorators and compile-time API carry no types, and an intrinsic looks as if it took its typing
# context; compiled functions are typed by numba itself.

from __future__ import annotations

import functools
import platform
import warnings

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.core.caching import NullCache
from numba.core.errors import NumbaWarning
from numba.extending import intrinsic, models, register_model

# Opcodes, column 0 of a descriptor, and its other columns. b requests, r rows, c columns or channels, h heads, t times;
# `x_b` is the stride of x along b. All offsets lie in the float arena unless said.
#
# MATMUL     1 b0 b1 r0 r1 c0 c1 | x_off x_b x_r | K w_off | y_off y_b y_r | norm epilogue a0 … a8
#            y[b,r,c] = x[b,r,:] · w[c,:], times 1 / sqrt(mean(x²) + 1e-6) if norm. Epilogue 0 stores, 1 adds to y,
#            2 stores silu(product with w[c]) * product with w[a0 + c], 3 rotates and appends: heads of width a0;
#            columns below a1 are queries (to y), the next a2 keys (to cache a3), the rest values (to cache a4), at
#            b * a6 + (a5 + r) * a2; cosines at a7 and sines at a8, a0 / 2 a position a5 + r.
# ATTENTION  2 b0 b1 r0 r1 h0 h1 | q_off q_b q_r | k_off v_off kv_b kv_r | width group pos0 | y_off y_b y_r
#            Row r sees positions 0 … pos0 + r; head h reads cache head h // group.
# GATHER     3 b0 b1 r0 r1 c0 c1 | idx_off idx_b idx_r idx_k | n_tables table_off table_stride width |
#            y_off y_b y_r y_c | cond_off cond_b: the sum of n table rows, and of cond unless its offset is -1. idx
#            lies in the int arena.
# ARGMAX     4 b0 b1 | x_off x_b width | out_off out_b, in the int arena
# CONV       5 b0 b1 t0 t1 c0 c1 | x_off x_b x_c | Cin K dilation | w_off bias_off snake_off (-1: none) |
#            y_off y_b y_c | epilogue (0 stores, 1 adds res, 2 tanh) res_off (strides of y)
#            Causal; weights (C, Cin, K); what lies before time 0 in memory is read, so the caller puts zeros there.
# UPCONV     6 b0 b1 t0 t1 c0 c1 | x_off x_b x_c | Cin rate | w_off Ctot bias_off snake_off | y_off y_b y_c
#            Causal transposed convolution of kernel 2 * rate; times are of the input; weights are two taps, each
#            (Cin, Ctot, rate), the first for x[t], the second for x[t - 1].
# TOUCH      7 off n: reads floats, as a cold weight would be.
NOP, MATMUL, ATTENTION, GATHER, ARGMAX, CONV, UPCONV, TOUCH = range(8)
DESCRIPTOR_COLUMNS = 28

# Epilogues of MATMUL (first four) and of CONV.
STORE, RESIDUAL, GATED, ROPE = range(4)
CONV_STORE, CONV_RESIDUAL, CONV_TANH = range(3)

NO_EVENT = 0xFFFF_FFFF
STOPPED, TAKEN = -1, -2  # why `enter` did not run a launch
LINE = 8  # int64 words in a cache line of 64 bytes

# A launch's block of int64 words: addresses of its arrays, then sizes, then state that only worker 0 writes.
(
    L_DESC,
    L_QUEUE_PTR,
    L_QUEUE,
    L_WAIT_PTR,
    L_WAIT_EVENT,
    L_SIGNAL,
    L_COUNTERS,
    L_REPLAY_PTR,
    L_REPLAY_QUEUE,
    L_FLOATS,
    L_INTS,
    L_STAMPS,
    L_REPLAY,
    L_WORKERS,
    L_OPERATORS,
    L_EVENTS,
    L_FLOAT_COUNT,
    L_EPOCH,
    L_COMPLETE,
    L_TAKEN,
    LAUNCH_WORDS,
) = range(21)

# A pool's control block in words: what is written while workers run has a line to itself (false sharing); what never
# changes shares the last lines. Then WORKER_WORDS a worker.
C_LAUNCH, C_STOP, C_FORK, C_JOIN, C_FAULT, C_SEQUENCE, _CONSTANTS = range(0, 7 * LINE, LINE)
C_SPIN_NS, C_PARK_NS, C_SCRATCH, C_SCRATCH_FLOATS, C_BODIES = range(_CONSTANTS, _CONSTANTS + 5)
C_WORKERS = _CONSTANTS + 2 * LINE  # C_BODIES is a table of one address an opcode
W_MAIL, W_DONE, W_PARKED, W_SEMAPHORE, W_READY, WORKER_WORDS = range(0, 6 * LINE, LINE)

# A counter's line: signals so far, threshold, signals a launch.
E_COUNT, E_THRESHOLD, E_SIGNALS = range(3)

GROUP = 32  # columns of a MATMUL that are finished together; their weights stay in the first-level cache
EPSILON = np.float32(1e-6)
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@functools.cache  # once is enough
def _warn(what):
    warnings.warn(f"{what}; the CPU runtime compiles anew in each process", NumbaWarning, stacklevel=3)


def _jit(**options):
    """``njit`` without the GIL; if the cache has nowhere to go, a warning and no cache instead of numba's error."""

    def decorate(function):
        try:
            return njit(nogil=True, error_model="numpy", **options)(function)
        except RuntimeError:
            if not options.pop("cache", False):
                raise
            _warn("numba has nowhere to write its cache")
            return njit(nogil=True, error_model="numpy", **options)(function)

    return decorate


_inline = _jit(forceinline=True)

# ---------------------------------------------------------------- pointers, atomics, system calls

F32P, I64P, U32P, I32P = (types.CPointer(t) for t in (types.float32, types.int64, types.uint32, types.int32))

# What a body is given: its descriptor, the float and int arenas, its worker's scratch, and the float arena's size.
# What it returns: 1, or 0 if an index read from memory pointed outside (only GATHER reads any).
BODY = types.int64(I64P, F32P, I32P, F32P, types.int64)


def _pointer_from_address(pointer):
    @intrinsic
    def at(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(types.int64), codegen

    return at


f32_at, i64_at, u32_at, i32_at = (_pointer_from_address(p) for p in (F32P, I64P, U32P, I32P))


@intrinsic
def shift(typingctx, pointer, elements):
    """`pointer` moved by `elements`."""

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.int64), codegen


def _atomic_load(ordering):
    @intrinsic
    def load(typingctx, pointer):
        def codegen(context, builder, signature, args):
            return builder.load_atomic(args[0], ordering, align=8)

        return types.int64(I64P), codegen

    return load


def _atomic_store(ordering):
    @intrinsic
    def store(typingctx, pointer, value):
        def codegen(context, builder, signature, args):
            builder.store_atomic(args[1], args[0], ordering, align=8)
            return context.get_dummy_value()

        return types.void(I64P, types.int64), codegen

    return store


def _atomic_update(operation, ordering):
    @intrinsic
    def update(typingctx, pointer, value):
        """The word's old value."""

        def codegen(context, builder, signature, args):
            return builder.atomic_rmw(operation, args[0], args[1], ordering)

        return types.int64(I64P, types.int64), codegen

    return update


load_acquire, load_seq_cst = _atomic_load("acquire"), _atomic_load("seq_cst")
store_release, store_seq_cst = _atomic_store("release"), _atomic_store("seq_cst")
add_acq_rel, swap_seq_cst = _atomic_update("add", "acq_rel"), _atomic_update("xchg", "seq_cst")

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
BYTES = ir.IntType(8).as_pointer()


def _call_c(builder, name, result, *args):
    """Call a symbol of libc by its name; ctypes would bake an address and switch the cache off."""
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


@intrinsic
def sched_yield(typingctx):
    """Let another thread have this CPU."""

    def codegen(context, builder, signature, args):
        return _call_c(builder, "sched_yield", I32)

    return types.int32(), codegen


@intrinsic
def clock_ns(typingctx):
    """CLOCK_MONOTONIC in nanoseconds."""

    def codegen(context, builder, signature, args):
        spec = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        _call_c(builder, "clock_gettime", I32, I32(1), builder.bitcast(spec, BYTES))
        seconds, rest = (builder.load(builder.gep(spec, [I32(0), I32(i)])) for i in range(2))
        return builder.add(builder.mul(seconds, I64(1_000_000_000)), rest)

    return types.int64(), codegen


@intrinsic
def sem_init(typingctx, semaphore):
    """Zero tokens, private to the process."""

    def codegen(context, builder, signature, args):
        return _call_c(builder, "sem_init", I32, builder.bitcast(args[0], BYTES), I32(0), I32(0))

    return types.int32(I64P), codegen


@intrinsic
def sem_wait(typingctx, semaphore):
    def codegen(context, builder, signature, args):
        return _call_c(builder, "sem_wait", I32, builder.bitcast(args[0], BYTES))

    return types.int32(I64P), codegen


@intrinsic
def sem_post(typingctx, semaphore):
    def codegen(context, builder, signature, args):
        return _call_c(builder, "sem_post", I32, builder.bitcast(args[0], BYTES))

    return types.int32(I64P), codegen


@intrinsic
def pause(typingctx):
    """Tell the core that this is a spin loop; nothing on machines without such a hint."""

    def codegen(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            _call_c(builder, "llvm.x86.sse2.pause", ir.VoidType())
        elif platform.machine() in ("aarch64", "arm64"):
            _call_c(builder, "llvm.aarch64.hint", ir.VoidType(), I32(1))
        return context.get_dummy_value()

    return types.void(), codegen


# ---------------------------------------------------------------- eight float32 lanes


class _VecType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="WorkbenchVec8f32")


VEC = _VecType()
LANES = 8
VECTOR, INTEGERS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


@register_model(_VecType)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, VECTOR)


def _vector_at(builder, pointer, index):
    return builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer())


@intrinsic
def vload(typingctx, pointer, index):
    def codegen(context, builder, signature, args):
        return builder.load(_vector_at(builder, args[0], args[1]), align=4)

    return VEC(F32P, types.int64), codegen


@intrinsic
def vstore(typingctx, pointer, index, value):
    def codegen(context, builder, signature, args):
        builder.store(args[2], _vector_at(builder, args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.void(F32P, types.int64, VEC), codegen


def _splat(builder, scalar):
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(INTEGERS, [0] * LANES))


@intrinsic
def splat(typingctx, scalar):
    """Eight copies of a scalar."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0])

    return VEC(types.float32), codegen


def _vector_operation(arity, build):
    """An intrinsic of `arity` vectors whose result ``build(builder, *vectors)`` emits."""

    def codegen(context, builder, signature, args):
        return build(builder, *args)

    if arity == 1:

        def operation(typingctx, a):
            return VEC(VEC), codegen
    elif arity == 2:

        def operation(typingctx, a, b):
            return VEC(VEC, VEC), codegen
    else:

        def operation(typingctx, a, b, c):
            return VEC(VEC, VEC, VEC), codegen

    return intrinsic(operation)


def _fused(builder, a, b, c):
    return _call_c(builder, "llvm.fmuladd.v8f32", VECTOR, a, b, c)


def _power_of_two(builder, mantissa, exponent):
    whole = builder.fptosi(exponent, INTEGERS)
    shifted = builder.shl(whole, ir.Constant(INTEGERS, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(mantissa, INTEGERS), shifted), VECTOR)


vadd = _vector_operation(2, lambda builder, a, b: builder.fadd(a, b))
vsub = _vector_operation(2, lambda builder, a, b: builder.fsub(a, b))
vmul = _vector_operation(2, lambda builder, a, b: builder.fmul(a, b))
vdiv = _vector_operation(2, lambda builder, a, b: builder.fdiv(a, b))
vmax = _vector_operation(2, lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
vmin = _vector_operation(2, lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))
vfma = _vector_operation(3, _fused)  # a * b + c
vround = _vector_operation(1, lambda builder, a: _call_c(builder, "llvm.rint.v8f32", VECTOR, a))
vscale = _vector_operation(2, _power_of_two)  # mantissa * 2**exponent, both normal


def _shuffle(builder, a, b, lanes):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


@intrinsic
def vstore_sums(typingctx, pointer, index, a, b, c, d):
    """Store the four lane sums of four vectors side by side."""

    def codegen(context, builder, signature, args):
        pointer, index, *vectors = args
        even, odd = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        pairs = [
            builder.fadd(_shuffle(builder, x, y, even), _shuffle(builder, x, y, odd))
            for x, y in (vectors[:2], vectors[2:])
        ]
        quads = builder.fadd(_shuffle(builder, *pairs, low), _shuffle(builder, *pairs, high))
        halves = [_shuffle(builder, quads, quads, lanes) for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])]
        sums = builder.fadd(*halves)
        target = builder.bitcast(builder.gep(pointer, [index]), sums.type.as_pointer())
        builder.store(sums, target, align=4)
        return context.get_dummy_value()

    return types.void(F32P, types.int64, VEC, VEC, VEC, VEC), codegen


def _fold(build):
    """An intrinsic that folds the lanes of a vector into a scalar, halves first."""

    @intrinsic
    def fold(typingctx, vector):
        def codegen(context, builder, signature, args):
            value, width = args[0], LANES
            while width > 1:
                width //= 2
                low = _shuffle(builder, value, value, list(range(width)))
                high = _shuffle(builder, value, value, list(range(width, 2 * width)))
                value = build(builder, low, high)
            return builder.extract_element(value, I32(0))

        return types.float32(VEC), codegen

    return fold


vsum = _fold(lambda builder, a, b: builder.fadd(a, b))
vlargest = _fold(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


@_inline
def vexp(x):
    """e**x to 2e-7 relative (Cephes expf: reduction by ln 2 in two parts, polynomial of degree 5)."""
    x = vmax(splat(-87.0), vmin(splat(88.0), x))  # in this order NaN passes
    n = vround(vmul(x, splat(1.4426950408889634)))
    r = vfma(n, splat(-0.693359375), x)
    r = vfma(n, splat(2.12194440e-4), r)
    p = vfma(splat(1.9875691500e-4), r, splat(1.3981999507e-3))
    p = vfma(p, r, splat(8.3334519073e-3))
    p = vfma(p, r, splat(4.1665795894e-2))
    p = vfma(p, r, splat(1.6666665459e-1))
    p = vfma(p, r, splat(5.0000001201e-1))
    return vscale(vadd(vfma(vmul(r, r), p, r), splat(1.0)), n)


@_inline
def vtanh(x):
    """tanh to 3e-7 (the rational function that Eigen uses, degrees 13 and 6, clamped where it is 1 in float32)."""
    x = vmax(splat(-7.90531110763549805), vmin(splat(7.90531110763549805), x))
    s = vmul(x, x)
    p = vfma(splat(-2.76076847742355e-16), s, splat(2.00018790482477e-13))
    p = vfma(p, s, splat(-8.60467152213735e-11))
    p = vfma(p, s, splat(5.12229709037114e-08))
    p = vfma(p, s, splat(1.48572235717979e-05))
    p = vfma(p, s, splat(6.37261928875436e-04))
    p = vfma(p, s, splat(4.89352455891786e-03))
    q = vfma(splat(1.19825839466702e-06), s, splat(1.18534705686654e-04))
    q = vfma(q, s, splat(2.26843463243900e-03))
    q = vfma(q, s, splat(4.89352518554385e-03))
    return vdiv(vmul(x, p), q)


@_inline
def vsnake(x, alpha, inverse):
    """x + sin(alpha·x)²/alpha. The square hides the sign, so the reduction is by π; sine to 1e-7 below 100.

    Reduction by π in three parts (each exact times a small integer), odd polynomial of degree 9 on ±π/2.
    """
    n = vround(vmul(vmul(x, alpha), splat(0.31830988618379067)))
    r = vfma(n, splat(-3.140625), vmul(x, alpha))
    r = vfma(n, splat(-0.0009670257568359375), r)
    r = vfma(n, splat(-6.2771141529083251953e-07), r)
    s = vmul(r, r)
    p = vfma(splat(2.6057805e-06), s, splat(-1.9809602e-04))
    p = vfma(p, s, splat(8.3330255e-03))
    p = vfma(p, s, splat(-1.6666657e-01))
    sine = vfma(vmul(p, s), r, r)
    return vfma(vmul(sine, sine), inverse, x)


# ---------------------------------------------------------------- MATMUL


@_inline
def dot_1x4(x, w, stride, n, out):
    """Products of one row with four rows of `w`, `stride` apart, to ``out[:4]``."""
    w0, w1, w2, w3 = w, shift(w, stride), shift(w, 2 * stride), shift(w, 3 * stride)
    a0, a1, a2, a3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    b0, b1, b2, b3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    k = 0
    while k + 16 <= n:
        u, v = vload(x, k), vload(x, k + 8)
        a0, b0 = vfma(u, vload(w0, k), a0), vfma(v, vload(w0, k + 8), b0)
        a1, b1 = vfma(u, vload(w1, k), a1), vfma(v, vload(w1, k + 8), b1)
        a2, b2 = vfma(u, vload(w2, k), a2), vfma(v, vload(w2, k + 8), b2)
        a3, b3 = vfma(u, vload(w3, k), a3), vfma(v, vload(w3, k + 8), b3)
        k += 16
    if k + 8 <= n:
        u = vload(x, k)
        a0, a1 = vfma(u, vload(w0, k), a0), vfma(u, vload(w1, k), a1)
        a2, a3 = vfma(u, vload(w2, k), a2), vfma(u, vload(w3, k), a3)
        k += 8
    vstore_sums(out, 0, vadd(a0, b0), vadd(a1, b1), vadd(a2, b2), vadd(a3, b3))
    while k < n:
        for j in range(4):
            out[j] += x[k] * w[j * stride + k]
        k += 1


@_inline
def dot_2x4(x, y, w, stride, n, out, beside):
    """As `dot_1x4` for two rows; the second row's products go to ``out[beside:]``."""
    w0, w1, w2, w3 = w, shift(w, stride), shift(w, 2 * stride), shift(w, 3 * stride)
    a0, a1, a2, a3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    b0, b1, b2, b3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    k = 0
    while k + 8 <= n:
        u, v = vload(x, k), vload(y, k)
        m = vload(w0, k)
        a0, b0 = vfma(u, m, a0), vfma(v, m, b0)
        m = vload(w1, k)
        a1, b1 = vfma(u, m, a1), vfma(v, m, b1)
        m = vload(w2, k)
        a2, b2 = vfma(u, m, a2), vfma(v, m, b2)
        m = vload(w3, k)
        a3, b3 = vfma(u, m, a3), vfma(v, m, b3)
        k += 8
    vstore_sums(out, 0, a0, a1, a2, a3)
    vstore_sums(out, beside, b0, b1, b2, b3)
    while k < n:
        for j in range(4):
            weight = w[j * stride + k]
            out[j] += x[k] * weight
            out[beside + j] += y[k] * weight
        k += 1


@_inline
def dot_1x1(x, w, n):
    a, b = splat(ZERO), splat(ZERO)
    k = 0
    while k + 16 <= n:
        a, b = vfma(vload(x, k), vload(w, k), a), vfma(vload(x, k + 8), vload(w, k + 8), b)
        k += 16
    total = vsum(vadd(a, b))
    while k < n:
        total += x[k] * w[k]
        k += 1
    return total


@_jit()
def products(x, y, pair, w, n, columns, out, beside):
    """Rows `x` (and `y` if `pair`) times the first `columns` rows of `w`, to `out` and ``out[beside:]``."""
    c = 0
    while c + 4 <= columns:
        if pair:
            dot_2x4(x, y, shift(w, c * n), n, n, shift(out, c), beside)
        else:
            dot_1x4(x, shift(w, c * n), n, n, shift(out, c))
        c += 4
    while c < columns:
        out[c] = dot_1x1(x, shift(w, c * n), n)
        if pair:
            out[beside + c] = dot_1x1(y, shift(w, c * n), n)
        c += 1


@_inline
def finish_plain(y, v, columns, scale, add):
    c = 0
    factor = splat(scale)
    while c + 8 <= columns:
        value = vmul(vload(v, c), factor)
        if add:
            value = vadd(value, vload(y, c))
        vstore(y, c, value)
        c += 8
    while c < columns:
        y[c] = v[c] * scale + y[c] if add else v[c] * scale
        c += 1


@_inline
def finish_gated(y, gate, up, columns, scale):
    factor, one = splat(scale), splat(ONE)
    c = 0
    while c < columns:
        g, u = vmul(vload(gate, c), factor), vmul(vload(up, c), factor)
        value = vdiv(vmul(g, u), vadd(one, vexp(vsub(splat(ZERO), g))))
        if c + 8 <= columns:
            vstore(y, c, value)
        else:
            vstore(up, c, value)  # the buffer is padded to whole vectors
            for i in range(c, columns):
                y[i] = up[i]
        c += 8


@_inline
def finish_rotated(y, v, half, cos, sin, scale):
    c = 0
    factor = splat(scale)
    while c + 8 <= half:
        low, high = vmul(vload(v, c), factor), vmul(vload(v, c + half), factor)
        co, si = vload(cos, c), vload(sin, c)
        vstore(y, c, vsub(vmul(low, co), vmul(high, si)))
        vstore(y, c + half, vfma(high, co, vmul(low, si)))
        c += 8
    while c < half:
        a, b = v[c] * scale, v[c + half] * scale
        y[c] = a * cos[c] - b * sin[c]
        y[c + half] = b * cos[c] + a * sin[c]
        c += 1


@_inline
def finish_heads(d, f, v, b, r, c, row, scale):
    """Epilogue ROPE for the head that starts at column `c`: query, key (both rotated) or value."""
    width, queries, keys = d[17], d[18], d[19]
    position = d[22] + r
    cos = shift(f, d[24] + position * (width // 2))
    sin = shift(f, d[25] + position * (width // 2))
    slot = b * d[23] + position * keys
    if c < queries:
        finish_rotated(shift(f, row + c), v, width // 2, cos, sin, scale)
    elif c < queries + keys:
        finish_rotated(shift(f, d[20] + slot + c - queries), v, width // 2, cos, sin, scale)
    else:
        finish_plain(shift(f, d[21] + slot + c - queries - keys), v, width, scale, d[16] == RESIDUAL)


@_inline
def inverse_rms(x, n):
    return ONE / np.sqrt(dot_1x1(x, x, n) / np.float32(n) + EPSILON)


def matmul(d, f, ints, scratch, limit):
    """Columns in groups whose weights fit the first-level cache; within a group, rows two by two."""
    rows_per_batch, n, epilogue = d[4] - d[3], d[10], d[16]
    rows = (d[2] - d[1]) * rows_per_batch
    width = d[17] if epilogue == ROPE else GROUP
    padded = (width + 7) // 8 * 8
    v, up = scratch, shift(scratch, 2 * padded)
    scales = shift(scratch, 4 * padded)
    for q in range(rows):
        b, r = d[1] + q // rows_per_batch, d[3] + q % rows_per_batch
        scales[q] = inverse_rms(shift(f, d[7] + b * d[8] + r * d[9]), n) if d[15] else ONE
    c = d[5]
    while c < d[6]:
        columns = min(width, d[6] - c)
        q = 0
        while q < rows:
            pair = q + 1 < rows
            last = q + 1 if pair else q
            b0, r0 = d[1] + q // rows_per_batch, d[3] + q % rows_per_batch
            b1, r1 = d[1] + last // rows_per_batch, d[3] + last % rows_per_batch
            x, y = shift(f, d[7] + b0 * d[8] + r0 * d[9]), shift(f, d[7] + b1 * d[8] + r1 * d[9])
            products(x, y, pair, shift(f, d[11] + c * n), n, columns, v, padded)
            if epilogue == GATED:
                products(x, y, pair, shift(f, d[11] + (c + d[17]) * n), n, columns, up, padded)
            for i in range(last - q + 1):
                b, r = (b1, r1) if i else (b0, r0)
                row, at = d[12] + b * d[13] + r * d[14], i * padded
                if epilogue == ROPE:
                    finish_heads(d, f, shift(v, at), b, r, c, row, scales[q + i])
                elif epilogue == GATED:
                    finish_gated(shift(f, row + c), shift(v, at), shift(up, at), columns, scales[q + i])
                else:
                    finish_plain(shift(f, row + c), shift(v, at), columns, scales[q + i], epilogue == RESIDUAL)
            q += 2
        c += columns
    return 1


# ---------------------------------------------------------------- ATTENTION, GATHER, ARGMAX, TOUCH


@_inline
def softmax(s, n, factor):
    """``exp(factor * (s - max))`` in place; what is added to fill a vector counts nothing. Returns 1 / sum."""
    largest = s[0]
    p = 0
    if n >= 8:
        top = vload(s, 0)
        while p + 8 <= n:
            top = vmax(vload(s, p), top)
            p += 8
        largest = vlargest(top)
    while p < n:
        largest = max(largest, s[p])
        p += 1
    while p % 8:
        s[p] = -np.inf
        p += 1
    total = splat(ZERO)
    for i in range(0, n, 8):
        e = vexp(vmul(vsub(vload(s, i), splat(largest)), splat(factor)))
        vstore(s, i, e)
        total = vadd(total, e)
    return ONE / vsum(total)


@_inline
def mix_32(s, v, stride, n, y, scale):
    a, b, c, e = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for p in range(n):
        weight, row = splat(s[p]), shift(v, p * stride)
        a, b = vfma(weight, vload(row, 0), a), vfma(weight, vload(row, 8), b)
        c, e = vfma(weight, vload(row, 16), c), vfma(weight, vload(row, 24), e)
    factor = splat(scale)
    vstore(y, 0, vmul(a, factor))
    vstore(y, 8, vmul(b, factor))
    vstore(y, 16, vmul(c, factor))
    vstore(y, 24, vmul(e, factor))


@_jit()
def attend(q, k, v, stride, width, n, y, s):
    """One query over `n` positions of one head; `s` has room for `n` scores and a vector more."""
    p = 0
    while p + 4 <= n:
        dot_1x4(q, shift(k, p * stride), stride, width, shift(s, p))
        p += 4
    while p < n:
        s[p] = dot_1x1(q, shift(k, p * stride), width)
        p += 1
    scale = softmax(s, n, ONE / np.sqrt(np.float32(width)))
    c = 0
    while c + 32 <= width:
        mix_32(s, shift(v, c), stride, n, shift(y, c), scale)
        c += 32
    while c + 8 <= width:
        a = splat(ZERO)
        for p in range(n):
            a = vfma(splat(s[p]), vload(v, p * stride + c), a)
        vstore(y, c, vmul(a, splat(scale)))
        c += 8
    while c < width:
        total = ZERO
        for p in range(n):
            total += s[p] * v[p * stride + c]
        y[c] = total * scale
        c += 1


def attention(d, f, ints, scratch, limit):
    for b in range(d[1], d[2]):
        for r in range(d[3], d[4]):
            for h in range(d[5], d[6]):
                q = shift(f, d[7] + b * d[8] + r * d[9] + h * d[14])
                head = b * d[12] + h // d[15] * d[14]
                y = shift(f, d[17] + b * d[18] + r * d[19] + h * d[14])
                attend(q, shift(f, d[10] + head), shift(f, d[11] + head), d[13], d[14], d[16] + r + 1, y, scratch)
    return 1


@_inline
def gather_row(d, f, ints, b, r, row, limit):
    """Sum of one output row's table rows into its place; 0 if an index leaves the arena."""
    columns, first, step = d[6] - d[5], d[5], d[18]
    for k in range(d[11]):
        index = np.int64(ints[d[7] + b * d[8] + r * d[9] + k * d[10]])
        source = d[12] + k * d[13] + index * d[14]
        if index < 0 or source + d[6] > limit:
            return 0
        table = shift(f, source + first)
        start, other = False, table
        if k == 0:
            start = d[19] < 0
            other = table if start else shift(f, d[19] + b * d[20] + first)
        c = 0
        if step == 1:
            y = shift(f, row + first)
            if k:
                other = y
            while c + 8 <= columns:
                value = vload(table, c)
                vstore(y, c, value if start else vadd(value, vload(other, c)))
                c += 8
        while c < columns:
            at = row + (first + c) * step
            before = f[at] if k else other[c]
            f[at] = table[c] if start else table[c] + before
            c += 1
    return 1


def gather(d, f, ints, scratch, limit):
    sound = 1
    for b in range(d[1], d[2]):
        for r in range(d[3], d[4]):
            sound &= gather_row(d, f, ints, b, r, d[15] + b * d[16] + r * d[17], limit)
    return sound


def argmax(d, f, ints, scratch, limit):
    """First index of the maximum; as in numpy, the first NaN counts as the maximum."""
    for b in range(d[1], d[2]):
        x = shift(f, d[3] + b * d[4])
        best, at = x[0], 0
        i = 1
        while i < d[5] and best == best:
            if not x[i] <= best:
                best, at = x[i], i
            i += 1
        ints[d[6] + b * d[7]] = at
    return 1


def touch(d, f, ints, scratch, limit):
    x, n = shift(f, d[1]), d[2]
    a0, a1, a2, a3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    i = 0
    while i + 32 <= n:
        a0, a1 = vadd(a0, vload(x, i)), vadd(a1, vload(x, i + 8))
        a2, a3 = vadd(a2, vload(x, i + 16)), vadd(a3, vload(x, i + 24))
        i += 32
    total = vsum(vadd(vadd(a0, a1), vadd(a2, a3)))
    while i < n:
        total += x[i]
        i += 1
    scratch[0] = total  # a store that the compiler cannot prove dead, so the loads stay
    return 1


# ---------------------------------------------------------------- CONV and UPCONV


@_jit()
def snake_row(x, n, out, snake, alpha):
    """``out[:n]`` = Snake of x, or x itself; works where `out` has room for a whole last vector."""
    i = 0
    if not snake:
        while i + 8 <= n:
            vstore(out, i, vload(x, i))
            i += 8
        while i < n:
            out[i] = x[i]
            i += 1
        return
    a, inverse = splat(alpha), splat(ONE / alpha)
    while i + 8 <= n:
        vstore(out, i, vsnake(vload(x, i), a, inverse))
        i += 8
    if i < n:
        for j in range(i, n):
            out[j] = x[j]
        for j in range(n, i + 8):
            out[j] = ZERO
        vstore(out, i, vsnake(vload(out, i), a, inverse))


@_inline
def conv_store(d, f, b, c, t, value):
    """Epilogue for up to eight outputs of channel `c` from time `t`; the tile's end cuts the vector."""
    at = d[16] + b * d[17] + c * d[18] + t
    residual = d[20] + b * d[17] + c * d[18] + t
    if d[19] == CONV_TANH:
        value = vtanh(value)
    if t + 8 <= d[4]:
        if d[19] == CONV_RESIDUAL:
            value = vadd(value, vload(f, residual))
        vstore(f, at, value)
    else:
        for i in range(d[4] - t):
            lane = vlane(value, i)
            f[at + i] = lane + f[residual + i] if d[19] == CONV_RESIDUAL else lane


@intrinsic
def vlane(typingctx, vector, lane):
    def codegen(context, builder, signature, args):
        return builder.extract_element(args[0], args[1])

    return types.float32(VEC, types.int64), codegen


@_jit()
def conv_4x2(d, f, s, length, b, c, t):
    """Four channels by sixteen times."""
    channels, taps, dilation = d[10], d[11], d[12]
    n = channels * taps
    w0 = shift(f, d[13] + c * n)
    w1, w2, w3 = shift(w0, n), shift(w0, 2 * n), shift(w0, 3 * n)
    bias = shift(f, d[14] + c)
    a0, a1, a2, a3 = splat(bias[0]), splat(bias[1]), splat(bias[2]), splat(bias[3])
    b0, b1, b2, b3 = a0, a1, a2, a3
    m = 0
    for ci in range(channels):
        at = ci * length + t - d[3]
        for _ in range(taps):
            u, v = vload(s, at), vload(s, at + 8)
            w = splat(w0[m])
            a0, b0 = vfma(u, w, a0), vfma(v, w, b0)
            w = splat(w1[m])
            a1, b1 = vfma(u, w, a1), vfma(v, w, b1)
            w = splat(w2[m])
            a2, b2 = vfma(u, w, a2), vfma(v, w, b2)
            w = splat(w3[m])
            a3, b3 = vfma(u, w, a3), vfma(v, w, b3)
            at += dilation
            m += 1
    conv_store(d, f, b, c, t, a0)
    conv_store(d, f, b, c + 1, t, a1)
    conv_store(d, f, b, c + 2, t, a2)
    conv_store(d, f, b, c + 3, t, a3)
    if t + 8 < d[4]:
        conv_store(d, f, b, c, t + 8, b0)
        conv_store(d, f, b, c + 1, t + 8, b1)
        conv_store(d, f, b, c + 2, t + 8, b2)
        conv_store(d, f, b, c + 3, t + 8, b3)


@_jit()
def conv_4x1(d, f, s, length, b, c, t):
    """Four channels by eight times."""
    channels, taps, dilation = d[10], d[11], d[12]
    n = channels * taps
    w0 = shift(f, d[13] + c * n)
    w1, w2, w3 = shift(w0, n), shift(w0, 2 * n), shift(w0, 3 * n)
    bias = shift(f, d[14] + c)
    a0, a1, a2, a3 = splat(bias[0]), splat(bias[1]), splat(bias[2]), splat(bias[3])
    m = 0
    for ci in range(channels):
        at = ci * length + t - d[3]
        for _ in range(taps):
            u = vload(s, at)
            a0, a1 = vfma(u, splat(w0[m]), a0), vfma(u, splat(w1[m]), a1)
            a2, a3 = vfma(u, splat(w2[m]), a2), vfma(u, splat(w3[m]), a3)
            at += dilation
            m += 1
    conv_store(d, f, b, c, t, a0)
    conv_store(d, f, b, c + 1, t, a1)
    conv_store(d, f, b, c + 2, t, a2)
    conv_store(d, f, b, c + 3, t, a3)


@_jit()
def conv_1x4(d, f, s, length, b, c, t):
    """One channel by thirty-two times."""
    channels, taps, dilation = d[10], d[11], d[12]
    weights = shift(f, d[13] + c * channels * taps)
    a0 = splat(f[d[14] + c])
    a1, a2, a3 = a0, a0, a0
    m = 0
    for ci in range(channels):
        at = ci * length + t - d[3]
        for _ in range(taps):
            w = splat(weights[m])
            a0, a1 = vfma(w, vload(s, at), a0), vfma(w, vload(s, at + 8), a1)
            a2, a3 = vfma(w, vload(s, at + 16), a2), vfma(w, vload(s, at + 24), a3)
            at += dilation
            m += 1
    conv_store(d, f, b, c, t, a0)
    if t + 8 < d[4]:
        conv_store(d, f, b, c, t + 8, a1)
    if t + 16 < d[4]:
        conv_store(d, f, b, c, t + 16, a2)
    if t + 24 < d[4]:
        conv_store(d, f, b, c, t + 24, a3)


@_jit()
def conv_wide(d, f, scratch):
    """Input with its halo staged once, then blocks of channels by times; the padding of a row is zero."""
    times, channels = d[4] - d[3], d[10]
    halo = (d[11] - 1) * d[12]
    length = halo + (times + 31) // 32 * 32
    for b in range(d[1], d[2]):
        for ci in range(channels):
            row = shift(scratch, ci * length)
            alpha = f[d[15] + ci] if d[15] >= 0 else ONE
            for i in range(halo + times, length):
                row[i] = ZERO
            snake_row(shift(f, d[7] + b * d[8] + ci * d[9] + d[3] - halo), halo + times, row, d[15] >= 0, alpha)
        c = d[5]
        while c + 4 <= d[6]:
            t = d[3]
            while t + 8 < d[4]:
                conv_4x2(d, f, scratch, length, b, c, t)
                t += 16
            if t < d[4]:
                conv_4x1(d, f, scratch, length, b, c, t)
            c += 4
        while c < d[6]:
            for t in range(d[3], d[4], 32):
                conv_1x4(d, f, scratch, length, b, c, t)
            c += 1


@_jit()
def conv_finish(d, f, row, c, columns, v):
    """Epilogue of `conv_short` for one row (batch × time) and `columns` channels from `c`."""
    times = d[4] - d[3]
    b, t = d[1] + row // times, d[3] + row % times
    for j in range(columns):
        place = b * d[17] + (c + j) * d[18] + t
        value = v[j] + f[d[14] + c + j]
        if d[19] == CONV_RESIDUAL:
            value += f[d[20] + place]
        elif d[19] == CONV_TANH:
            value = vlane(vtanh(splat(value)), 0)
        f[d[16] + place] = value


@_jit()
def conv_short(d, f, scratch):
    """Fewer than eight times would leave lanes idle: unfold the windows and multiply as a MATMUL does."""
    times, channels, taps, dilation = d[4] - d[3], d[10], d[11], d[12]
    n, halo = channels * taps, (taps - 1) * dilation
    rows = (d[2] - d[1]) * times
    staged, v, unfolded = scratch, shift(scratch, halo + 16), shift(scratch, halo + 32)
    for b in range(d[1], d[2]):
        for ci in range(channels):
            alpha = f[d[15] + ci] if d[15] >= 0 else ONE
            source = shift(f, d[7] + b * d[8] + ci * d[9] + d[3] - halo)
            snake_row(source, halo + times, staged, d[15] >= 0, alpha)
            for t in range(times):
                window = shift(unfolded, ((b - d[1]) * times + t) * n + ci * taps)
                for k in range(taps):
                    window[k] = staged[t + k * dilation]
    c = d[5]
    while c < d[6]:
        columns = min(4, d[6] - c)
        weights = shift(f, d[13] + c * n)
        for q in range(0, rows, 2):
            pair = q + 1 < rows
            x = shift(unfolded, q * n)
            products(x, shift(x, n if pair else 0), pair, weights, n, columns, v, columns)
            conv_finish(d, f, q, c, columns, v)
            if pair:
                conv_finish(d, f, q + 1, c, columns, shift(v, columns))
        c += columns


def conv(d, f, ints, scratch, limit):
    if d[4] - d[3] < 8:
        conv_short(d, f, scratch)
    else:
        conv_wide(d, f, scratch)
    return 1


@_inline
def up_block(now, before, q, rows, pair, w0, w1, stride, channels, out, beside):
    """Thirty-two outputs (channel × phase) for one or two input rows, summed over the input channels."""
    a0, a1, a2, a3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    b0, b1, b2, b3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    other = q + 1 if pair else q
    for ci in range(channels):
        at = ci * rows
        u, v = splat(now[at + q]), splat(now[at + other])
        x, y = splat(before[at + q]), splat(before[at + other])
        m, n = vload(w0, 0), vload(w1, 0)
        a0, b0 = vfma(x, n, vfma(u, m, a0)), vfma(y, n, vfma(v, m, b0))
        m, n = vload(w0, 8), vload(w1, 8)
        a1, b1 = vfma(x, n, vfma(u, m, a1)), vfma(y, n, vfma(v, m, b1))
        m, n = vload(w0, 16), vload(w1, 16)
        a2, b2 = vfma(x, n, vfma(u, m, a2)), vfma(y, n, vfma(v, m, b2))
        m, n = vload(w0, 24), vload(w1, 24)
        a3, b3 = vfma(x, n, vfma(u, m, a3)), vfma(y, n, vfma(v, m, b3))
        w0, w1 = shift(w0, stride), shift(w1, stride)
    vstore(out, 0, a0)
    vstore(out, 8, a1)
    vstore(out, 16, a2)
    vstore(out, 24, a3)
    vstore(out, beside, b0)
    vstore(out, beside + 8, b1)
    vstore(out, beside + 16, b2)
    vstore(out, beside + 24, b3)


@_inline
def up_vector(now, before, q, rows, w0, w1, stride, channels, out):
    """As `up_block` for eight outputs of one row."""
    a, b = splat(ZERO), splat(ZERO)
    for ci in range(channels):
        a = vfma(splat(now[ci * rows + q]), vload(w0, ci * stride), a)
        b = vfma(splat(before[ci * rows + q]), vload(w1, ci * stride), b)
    vstore(out, 0, vadd(a, b))


@_jit()
def up_sums(now, before, q, rows, pair, w0, w1, stride, channels, n, out, beside):
    """All `n` outputs of a tile for one or two rows; a last block that would overrun starts earlier instead."""
    if n >= 32:
        for i in range(0, n, 32):
            j = min(i, n - 32)
            up_block(now, before, q, rows, pair, shift(w0, j), shift(w1, j), stride, channels, shift(out, j), beside)
        return
    for row in range(q, q + 2 if pair else q + 1):
        target = shift(out, beside if row > q else 0)
        if n >= 8:
            for i in range(0, n, 8):
                j = min(i, n - 8)
                up_vector(now, before, row, rows, shift(w0, j), shift(w1, j), stride, channels, shift(target, j))
        else:
            for i in range(n):
                total = ZERO
                for ci in range(channels):
                    total += now[ci * rows + row] * w0[ci * stride + i] + before[ci * rows + row] * w1[ci * stride + i]
                target[i] = total


@_inline
def up_store(d, f, row, v):
    """Put one row's sums, with their bias, to channels and output times."""
    times, rate = d[4] - d[3], d[11]
    b, t = d[1] + row // times, d[3] + row % times
    for c in range(d[5], d[6]):
        y = shift(f, d[16] + b * d[17] + c * d[18] + t * rate)
        bias = f[d[14] + c]
        sums = shift(v, (c - d[5]) * rate)
        if rate == 8:
            vstore(y, 0, vadd(vload(sums, 0), splat(bias)))
        else:
            for p in range(rate):
                y[p] = sums[p] + bias


def upconv(d, f, ints, scratch, limit):
    """Rows are (batch, input time); each is staged as its own input and the one before it."""
    times, channels, rate = d[4] - d[3], d[10], d[11]
    rows, stride, n = (d[2] - d[1]) * times, d[13] * rate, (d[6] - d[5]) * rate
    staged = scratch
    now = shift(scratch, (times + 16) // 8 * 8)
    before = shift(now, rows * channels)
    out = shift(before, rows * channels)
    for b in range(d[1], d[2]):
        for ci in range(channels):
            alpha = f[d[15] + ci] if d[15] >= 0 else ONE
            snake_row(shift(f, d[7] + b * d[8] + ci * d[9] + d[3] - 1), times + 1, staged, d[15] >= 0, alpha)
            at = ci * rows + (b - d[1]) * times
            for t in range(times):
                before[at + t] = staged[t]
                now[at + t] = staged[t + 1]
    w0 = shift(f, d[12] + d[5] * rate)
    w1 = shift(w0, channels * stride)
    for q in range(0, rows, 2):
        pair = q + 1 < rows
        up_sums(now, before, q, rows, pair, w0, w1, stride, channels, n, out, n)
        up_store(d, f, q, out)
        if pair:
            up_store(d, f, q + 1, shift(out, n))
    return 1


# ---------------------------------------------------------------- workers


@intrinsic
def call_body(typingctx, address, d, f, ints, scratch, limit):
    """Run the body at an address from the table; bodies are calls, so each is compiled, and cached, alone."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(I64, [arg.type for arg in args[1:]])
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), args[1:])

    return types.int64(types.int64, *BODY.args), codegen


@_jit()
def wait_long(word, target, spin_ns):
    """Spin until the word reaches `target`; after `spin_ns` let others run between looks."""
    begin = clock_ns()
    while True:
        for _ in range(64):
            if load_acquire(word) >= target:
                return
            pause()
        if clock_ns() - begin > spin_ns:
            break
    while load_acquire(word) < target:
        sched_yield()


@_inline
def wait_for(word, target, spin_ns):
    if load_acquire(word) < target:
        wait_long(word, target, spin_ns)


@_inline
def worker_at(control, worker):
    return shift(control, C_WORKERS + worker * WORKER_WORDS)


@_jit()
def work(control, launch, worker):
    """One worker's share of a launch: its queue once (megakernel), or its tiles of each operator in turn (replay)."""
    desc, signal = i64_at(launch[L_DESC]), u32_at(launch[L_SIGNAL])
    wait_ptr, wait_event = u32_at(launch[L_WAIT_PTR]), u32_at(launch[L_WAIT_EVENT])
    counters, before = i64_at(launch[L_COUNTERS]), launch[L_EPOCH] - 1
    floats, ints, limit = f32_at(launch[L_FLOATS]), i32_at(launch[L_INTS]), launch[L_FLOAT_COUNT]
    scratch = shift(f32_at(control[C_SCRATCH]), worker * control[C_SCRATCH_FLOATS])
    spin_ns, replay, bodies = control[C_SPIN_NS], launch[L_REPLAY] != 0, i64_at(control[C_BODIES])
    fork, join, workers = shift(control, C_FORK), shift(control, C_JOIN), launch[L_WORKERS]
    queue = u32_at(launch[L_REPLAY_QUEUE] if replay else launch[L_QUEUE])
    bounds = u32_at(launch[L_REPLAY_PTR] if replay else launch[L_QUEUE_PTR])
    stamps, stamped = i64_at(launch[L_STAMPS]), launch[L_STAMPS] != 0
    for operator in range(launch[L_OPERATORS] if replay else 1):
        if replay and workers > 1:
            if worker == 0:
                store_release(fork, operator + 1)
            else:
                wait_for(fork, operator + 1, spin_ns)
        slot = operator * workers + worker
        for i in range(np.int64(bounds[slot]), np.int64(bounds[slot + 1])):
            tile = np.int64(queue[i])
            if not replay:
                for j in range(np.int64(wait_ptr[tile]), np.int64(wait_ptr[tile + 1])):
                    event = shift(counters, np.int64(wait_event[j]) * LINE)
                    wait_for(event, before * event[E_SIGNALS] + event[E_THRESHOLD], spin_ns)
            if stamped:
                stamps[2 * tile] = clock_ns()
            d = shift(desc, tile * DESCRIPTOR_COLUMNS)
            if call_body(bodies[d[0]], d, floats, ints, scratch, limit) == 0:
                store_release(shift(control, C_FAULT), tile + 1)
            if stamped:
                stamps[2 * tile + 1] = clock_ns()
            if not replay and signal[tile] != NO_EVENT:
                add_acq_rel(shift(counters, np.int64(signal[tile]) * LINE), 1)
        if replay and workers > 1:
            if worker == 0:
                wait_for(join, (operator + 1) * (workers - 1), spin_ns)
            else:
                add_acq_rel(join, 1)


@_inline
def post(control, worker, sequence):
    """Put a launch number into a helper's mail and wake it if it is parked.

    Flag and mail are written and read in opposite order by helper and caller, all sequentially consistent (Dekker):
    at least one of them sees the other's write, so a wake-up cannot be lost. A token too many only makes the helper
    look at its mail once more.
    """
    own = worker_at(control, worker)
    store_seq_cst(shift(own, W_MAIL), sequence)
    parked = shift(own, W_PARKED)
    if load_seq_cst(parked) != 0 and swap_seq_cst(parked, 0) != 0:
        sem_post(shift(own, W_SEMAPHORE))


@_inline
def await_mail(control, worker, seen):
    """Spin, then yield, then park, until the mail holds another number than `seen`; return it."""
    own = worker_at(control, worker)
    mail, parked = shift(own, W_MAIL), shift(own, W_PARKED)
    spin_ns, park_ns = control[C_SPIN_NS], control[C_PARK_NS]
    begin = clock_ns()
    waited = 0
    while waited < park_ns:
        for _ in range(64 if waited < spin_ns else 1):
            sequence = load_acquire(mail)
            if sequence != seen:
                return sequence
            pause()
        if waited >= spin_ns:
            sched_yield()
        waited = clock_ns() - begin
    while True:
        swap_seq_cst(parked, 1)
        sequence = load_seq_cst(mail)
        if sequence != seen:
            store_seq_cst(parked, 0)
            return sequence
        sem_wait(shift(own, W_SEMAPHORE))


@_inline
def start_epoch(launch):
    """Begin a launch's next epoch; counters are cleared only if its last run did not come to its end."""
    if launch[L_COMPLETE] == 0:
        counters = i64_at(launch[L_COUNTERS])
        for event in range(launch[L_EVENTS]):
            counters[event * LINE + E_COUNT] = 0
        launch[L_EPOCH] = 0
    launch[L_COMPLETE] = 0
    launch[L_EPOCH] += 1


@_jit(cache=True)
def enter(control_address, launch_address, worker):
    """Worker 0: run a launch to its end and return the faulty tile's id + 1, 0 if none, or why not.

    Other workers: serve until stopped. A negative worker does nothing, so that the function compiles.
    """
    if worker < 0:
        return 0
    control = i64_at(control_address)
    if worker > 0:
        seen = np.int64(0)
        store_release(shift(worker_at(control, worker), W_READY), 1)
        while True:
            seen = await_mail(control, worker, seen)
            if load_acquire(shift(control, C_STOP)) != 0:
                return 0
            work(control, i64_at(load_acquire(shift(control, C_LAUNCH))), worker)
            store_release(shift(worker_at(control, worker), W_DONE), seen)
    if load_acquire(shift(control, C_STOP)) != 0:
        return STOPPED
    launch = i64_at(launch_address)
    if swap_seq_cst(shift(launch, L_TAKEN), 1) != 0:
        return TAKEN
    start_epoch(launch)
    control[C_FAULT] = 0
    workers, sequence = launch[L_WORKERS], control[C_SEQUENCE]
    if workers > 1:
        sequence += 1
        control[C_SEQUENCE] = sequence
        control[C_LAUNCH] = launch_address
        control[C_FORK] = 0
        control[C_JOIN] = 0
        for helper in range(1, workers):
            post(control, helper, sequence)
    work(control, launch, worker)
    for helper in range(1, workers):
        wait_for(shift(worker_at(control, helper), W_DONE), sequence, control[C_SPIN_NS])
    launch[L_COMPLETE] = 1
    store_release(shift(launch, L_TAKEN), 0)
    return load_acquire(shift(control, C_FAULT))


@_jit(cache=True)
def prepare(control_address, workers):
    """Initialise the semaphores of a fresh control block."""
    control = i64_at(control_address)
    for worker in range(1, workers):
        sem_init(shift(worker_at(control, worker), W_SEMAPHORE))


@_jit(cache=True)
def stop(control_address, workers):
    """Ask every helper to leave its loop, parked or not."""
    control = i64_at(control_address)
    store_seq_cst(shift(control, C_STOP), 1)
    sequence = control[C_SEQUENCE] + 1
    control[C_SEQUENCE] = sequence
    for worker in range(1, workers):
        post(control, worker, sequence)


@_jit(cache=True)
def walk(queue_ptr, queue, wait_ptr, wait_event, threshold, signal, position, count):
    """Run the queues without bodies, as far as they go: `position` becomes each worker's first tile that cannot run.

    Counters only grow, so which worker is tried first cannot change what is reached in the end. Returns tiles run.
    """
    workers = len(queue_ptr) - 1
    for worker in range(workers):
        position[worker] = queue_ptr[worker]
    done, moved = 0, True
    while moved:
        moved = False
        for worker in range(workers):
            while position[worker] < queue_ptr[worker + 1]:
                tile = queue[position[worker]]
                blocked = False
                for j in range(wait_ptr[tile], wait_ptr[np.int64(tile) + 1]):
                    if count[wait_event[j]] < threshold[wait_event[j]]:
                        blocked = True
                        break
                if blocked:
                    break
                if signal[tile] != NO_EVENT:
                    count[signal[tile]] += 1
                position[worker] += 1
                done += 1
                moved = True
    return done


def nop(d, f, ints, scratch, limit):
    return 1


BODY_OF = {
    NOP: nop,
    MATMUL: matmul,
    ATTENTION: attention,
    GATHER: gather,
    ARGMAX: argmax,
    CONV: conv,
    UPCONV: upconv,
    TOUCH: touch,
}


@functools.cache
def compile_all():
    """Compile everything, or load it from the cache; returns the bodies, compiled, in the order of their opcodes.

    A cache that cannot be written costs a warning.
    """
    try:
        enter(0, 0, -1)
        return _compile_bodies(True)
    except OSError as error:
        _warn(f"numba cannot write its cache ({error})")
    for function in (enter, prepare, stop, walk):
        function._cache = NullCache()
    enter(0, 0, -1)
    return _compile_bodies(False)


def _compile_bodies(cache):
    try:
        return tuple(cfunc(BODY, cache=cache, error_model="numpy")(BODY_OF[opcode]) for opcode in range(len(BODY_OF)))
    except RuntimeError:
        if not cache:
            raise
        _warn("numba has nowhere to write its cache")
        return _compile_bodies(False)
