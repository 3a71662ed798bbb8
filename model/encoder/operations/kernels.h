/* What the kernels of this folder share, and the functions that Python calls.
 *
 * In: addresses of contiguous arrays, or with strides for products; sizes. Out: written in place of
 * the arrays named in the comments.
 *
 * Every function has a plain torch counterpart, which is used in tests for comparison and as the
 * fallback without a compiler (native_kernels.py). Arithmetic is float32. Inputs and outputs are
 * bfloat16, or float32 in a separate library compiled with -DFLOAT32. Loops are plain, so that any
 * compiler can vectorise them; threads are those of torch's OpenMP runtime (see native_kernels.py).
 *
 * The declarations at the end are the only list of types: the compiler checks the definitions
 * against them, and native.py reads from them how Python has to pass its arguments. */

#pragma once

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef int64_t idx;

#define TILE 32

#if defined(FLOAT32)
typedef float real;

static inline float wide(real x) { return x; }
static inline real narrow(float x) { return x; }
#else
typedef uint16_t real;

static inline float wide(real x) {
    uint32_t bits = (uint32_t)x << 16;
    float exact;
    memcpy(&exact, &bits, 4);
    return exact;
}

/* round to nearest, ties to even; quiet NaNs stay NaNs */
static inline real narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (real)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512BF16__)
#define HAS_BF16_PRODUCTS
#endif
#if defined(__AMX_BF16__)
#define MAY_HAVE_TILES
#endif
#endif

/* Memory of this thread, overwritten by its next call: from the heap that tensors share, it would
 * be other memory each time, out of the cache */
__attribute__((visibility("hidden"))) void *scratch(size_t bytes);

/* `memory`, or the end of the process, with a message, if the heap had none: a kernel cannot report
 * an error, and must not write through a null pointer */
__attribute__((visibility("hidden"))) void *allocated(void *memory, size_t bytes);

/* float32 vectors of the processor's width */
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* out = factor * in, [count] */
static inline void round_line(idx count, float factor, const float *in, real *out) {
    idx i = 0;
#if defined(HAS_BF16_PRODUCTS)
    for (; i + 32 <= count; i += 32) {
        lanes low = factor * *(const lanes *)(in + i),
              high = factor * *(const lanes *)(in + i + 16);
        __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        memcpy(out + i, &both, sizeof both);
    }
#endif
    for (; i < count; i++) out[i] = narrow(factor * in[i]);
}

/* e^x = 2^n 2^r with |r| <= 1/2; 2^r is a minimax polynomial with relative error 1e-7. For |x| > 2,
 * rounding x / ln 2 loses about as much again. */
static inline float exponential(float x) {
    float exponent = x * 1.44269504f;
    exponent = exponent < -126.0f ? -126.0f : exponent; /* this comparison preserves NaN */
    exponent = exponent > 127.0f ? 127.0f : exponent;
    float n = rintf(exponent), r = exponent - n;
    float p = 1.3264727e-3f;
    p = p * r + 9.6715129e-3f;
    p = p * r + 5.5507337e-2f;
    p = p * r + 2.4022242e-1f;
    p = p * r + 6.9314698e-1f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

/* GELU and its derivative. Tanh form: x s with s = 1 / (1 + e^-2u), u = c (x + 0.044715 x^3). Exact
 * form: x Phi(x), with erf by Abramowitz & Stegun 7.1.26, error 1.5e-7. */

typedef struct {
    float value, slope;
} Gelu;

static inline Gelu gelu_tanh(float x) {
    float square = x * x;
    float u = 0.7978845608f * (x + 0.044715f * x * square);
    float s = 1.0f / (1.0f + exponential(-2.0f * u));
    float inner = 2.0f * 0.7978845608f * (1.0f + 0.134145f * square);
    return (Gelu){x * s, s + x * s * (1.0f - s) * inner};
}

static inline Gelu gelu_erf(float x) {
    float e = exponential(-0.5f * x * x), t = 1.0f / (1.0f + 0.2316419f * fabsf(x));
    float tail =
        t * (0.254829592f +
             t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float upper = 0.5f * tail * e; /* 1 - Phi(|x|) */
    float cdf = x < 0.0f ? upper : 1.0f - upper;
    return (Gelu){x * cdf, cdf + x * 0.3989422804f * e};
}

/* Dropout: value number i of a stream has 16 random bits, a quarter of SplitMix64's output number i
 * / 4 (artifacts/rng.py). It is kept unless their low 15 bits are below `limit`; limit 0 keeps all.
 * */
#define DRAWN 1024
typedef uint16_t __attribute__((may_alias)) draw;

#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t random_word(uint64_t stream, uint64_t number) {
    return mixed(stream + (number + 1) * GOLDEN);
}

/* The bits of `count` values starting at number `first`, stored in `words` [count / 4 + 2] */
static inline const draw *drawn(uint64_t stream, idx first, idx count, uint64_t *words) {
    idx number = first / 4, needed = (first % 4 + count + 3) / 4;
    for (idx i = 0; i < needed; i++) words[i] = random_word(stream, number + i);
    return (const draw *)words + first % 4;
}

static inline int kept(uint16_t bits, int limit) { return (bits & 0x7fff) >= limit; }

typedef uint32_t pair __attribute__((may_alias));
typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint8_t octets __attribute__((vector_size(LANES), aligned(1), may_alias));

static inline lanes wide_lanes(const real *in) {
#if defined(FLOAT32)
    return *(const lanes *)in;
#else
    return (lanes)(__builtin_convertvector(*(const halves *)in, pairs) << 16);
#endif
}

static inline lanes larger(lanes a, lanes b) {
#if defined(__AVX512F__)
    return (lanes)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (lanes)_mm256_max_ps((__m256)a, (__m256)b);
#else
    for (int i = 0; i < LANES; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
#endif
}

static inline idx minimum(idx a, idx b) { return a < b ? a : b; }
static inline idx maximum(idx a, idx b) { return a > b ? a : b; }
static inline idx padded(idx count) { return (count + TILE - 1) / TILE * TILE; }
static inline idx quotient_up(idx count, idx size) { return (count + size - 1) / size; }
static inline idx in_lanes(idx count) { return (count + LANES - 1) / LANES * LANES; }

/* Products read operands in units of 32 bits: pairs of bfloat16, or one float32 each */
#define PAIR ((idx)(4 / sizeof(real)))

/* sum += product of a pair with the pair in each column */
static inline lanes add_products(lanes sum, pair x, pairs line) {
#if defined(FLOAT32)
    float factor;
    memcpy(&factor, &x, 4);
    return sum + factor * (lanes)line;
#elif defined(HAS_BF16_PRODUCTS)
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)line);
#else
    return sum + wide(x) * (lanes)(line << 16) + wide(x >> 16) * (lanes)(line & 0xffff0000);
#endif
}

#if defined(MAY_HAVE_TILES)
/* Whether the kernel grants this process the matrix unit, which must be requested */
static inline int has_tiles(void) {
    const int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static int answer = -1;
    if (answer < 0) answer = !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return answer;
}

/* Eight tiles of 16 lines of 64 bytes: four sums, two tiles of a, two of b */
static inline void use_tiles(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t lines[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        tiles.bytes[i] = 64;
        tiles.lines[i] = 16;
    }
    _tile_loadconfig(&tiles);
}
#endif

/* Transpose in place */
static inline __attribute__((always_inline)) void turn(pairs line[LANES]) {
    /* Transposing exchanges line and column number. Done bit by bit, each step only shuffles pairs
     * of registers whose numbers differ in that bit: 4 steps for 16 lines. */
#pragma GCC unroll 4
    for (int bit = 1; bit < LANES; bit *= 2) {
        pairs first, second;
        for (int i = 0; i < LANES; i++) {
            first[i] = i & bit ? LANES + i - bit : i;
            second[i] = i & bit ? LANES + i : i + bit;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & bit)) {
                pairs low = line[i], high = line[i + bit];
                line[i] = __builtin_shuffle(low, high, first);
                line[i + bit] = __builtin_shuffle(low, high, second);
            }
    }
}

/* out [columns, rows] is the transpose of in [rows, columns], in multiples of LANES */
static inline void transpose_pairs(idx rows, idx columns, const pair *in, idx stride, pair *out,
                                   idx out_stride) {
    for (idx row = 0; row < rows; row += LANES)
        for (idx column = 0; column < columns; column += LANES) {
            pairs line[LANES];
            for (int i = 0; i < LANES; i++)
                line[i] = *(const pairs *)(in + (row + i) * stride + column);
            turn(line);
            for (int i = 0; i < LANES; i++)
                *(pairs *)(out + (column + i) * out_stride + row) = line[i];
        }
}

/* The attention of one batch: its arguments are those of attention_forward */
typedef struct {
    idx sequences, heads, width, tokens, before, after;
    const int64_t *starts, *lengths, *numbers, *sides;
    const real *parts;
    const float *cosine, *sine;
    idx stream;
    int limit;
    float scale;
} Attention;

static inline Attention attention_of(idx sequences, idx heads, idx width, const int64_t *places,
                                     idx tokens, idx before, idx after, const real *parts,
                                     const float *cosine, const float *sine, idx stream, int limit,
                                     float scale) {
    return (Attention){.sequences = sequences,
                       .heads = heads,
                       .width = width,
                       .tokens = tokens,
                       .before = before,
                       .after = after,
                       .starts = places,
                       .lengths = places + sequences,
                       .numbers = places + 2 * sequences,
                       .sides = places + 3 * sequences,
                       .parts = parts,
                       .cosine = cosine,
                       .sine = sine,
                       .stream = stream,
                       .limit = limit,
                       .scale = scale};
}

/* attention_forward by the threads of the parallel region from which all of them call it */
__attribute__((visibility("hidden"))) void attend(const Attention *a, real *out, float *log_sums);

/* ---- called from Python; what they do is said where they are defined ---- */

/* elementwise.c */

void random_words(idx count, idx stream, uint64_t *words);
void drop(idx count, real *values, idx stream, int limit, float scale);
void gelu_forward(idx count, real *values, real *slopes, int is_tanh);
void gelu_backward(idx rows, idx width, real *gradient, const real *slope, real *total);
void residual_norm_forward(idx rows, idx width, real *dense, const real *residual, idx stream,
                           int limit, float scale, const real *weight, const real *bias, float eps,
                           real *out, float *mean, float *deviation);
void norm_forward(idx rows, idx width, const real *in, const real *weight, const real *bias,
                  float eps, real *out, float *mean, float *deviation);
void norm_backward(idx rows, idx width, const real *gradient, const real *in, const real *weight,
                   const float *mean, const float *deviation, const real *residual, real *out,
                   real *total);
void geglu_forward(idx rows, idx width, real *values, real *out, int is_tanh, int is_kept);
void geglu_backward(idx rows, idx width, const real *gradient, const real *factors, real *out);
void column_sums(idx rows, idx width, const real *in, real *total);
void transpose(idx rows, idx width, const real *in, real *out);
void residual_norm_backward(idx rows, idx width, const real *gradient, const real *sum, idx stream,
                            int limit, float scale, const real *weight, const float *mean,
                            const float *deviation, real *residual, real *dense, real *total);
void cross_entropy(idx words, idx count, real *logits, const real *bias, const int64_t *labels,
                   float *inverse, float *losses, uint8_t *hits);

/* attention.c */

void attention_forward(idx sequences, idx heads, idx width, const int64_t *places, idx tokens,
                       idx before, idx after, const real *parts, const float *cosine,
                       const float *sine, idx stream, int limit, float scale, real *out,
                       float *log_sums);
void attention_backward(idx sequences, idx heads, idx width, const int64_t *places, idx tokens,
                        idx before, idx after, const real *parts, const float *cosine,
                        const float *sine, idx stream, int limit, float scale, const real *out,
                        const float *log_sums, const real *gradient, real *dparts);

/* inference.c */

void pack_weight(idx depth, idx columns, const real *weight, idx down, idx across, pair *panels);
void quantise_weight(idx depth, idx columns, const real *weight, idx down, idx across, pair *panels,
                     float *scales, float *sums);
idx encoding_room(idx tokens, idx width, idx inner, idx heads);
void encode(idx layers, const int64_t *addresses, idx width, idx inner, idx heads, float eps,
            int is_tanh, int is_int8, int is_kept, idx sequences, const int64_t *places, idx tokens,
            idx before, idx after, real *states, void *room);

/* products.c: may_use_tiles says whether there are those in bfloat16 */

void transposed_product(idx depth, idx rows, idx columns, idx parts, const real *a, const real *b,
                        real *out);
void product(idx rows, idx columns, idx depth, const real *a, idx a_down, idx a_across,
             const real *b, idx b_down, idx b_across, const real *bias, int is_added,
             int is_symmetric, real *c, idx stride);
void orthogonalise(idx matrices, idx rows, idx columns, const real *in, real *out, int steps,
                   float first, float third, float fifth);
int may_use_tiles(void);
int multiplies_bfloat16(void);

/* updates.c */

void squared_gradients(idx tensors, const int64_t *counts, float *const *exact,
                       real *const *rounded, double *sums);
void adamw(idx tensors, const int64_t *counts, float *const *masters, float *const *first,
           float *const *second, float *const *exact, real *const *rounded, real *const *copies,
           float scale, float rate, float beta1, float beta2, float eps, float decay);
void muon_momentum(idx tensors, const int64_t *counts, float *const *first, float *const *exact,
                   real *const *rounded, real *const *ahead, float scale, float momentum);
void muon_move(idx tensors, const int64_t *counts, float *const *masters, real *const *moves,
               real *const *copies, float rate, float decay);
