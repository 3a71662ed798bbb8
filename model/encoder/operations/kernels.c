/* Fused element-wise operations and attention for the encoder, each of which reads and writes a
 * tensor once; in float32 also matrix products.
 *
 * In:  addresses of contiguous arrays, or with strides for products; sizes.
 * Out: written in place of the arrays named in the comments.
 *
 * Every function has a plain torch counterpart, which is used in tests for comparison and as the
 * fallback without a compiler (native_kernels.py). Arithmetic is float32. Inputs and outputs are
 * bfloat16, or float32 in a separate library compiled with -DFLOAT32. Loops are plain, so that any
 * compiler can vectorise them; threads are those of torch's OpenMP runtime (see native_kernels.py).
 */

#include <math.h>
#include <omp.h>
#include <stdint.h>
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

/* Memory of this thread, overwritten by its next call: from the heap that tensors share, it would be
 * other memory each time, out of the cache */
static void *scratch(size_t bytes) {
    static _Thread_local void *kept;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(kept);
        size = (bytes + 4095) / 4096 * 4096;
        kept = aligned_alloc(4096, size);
    }
    return kept;
}

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
        lanes low = factor * *(const lanes *)(in + i), high = factor * *(const lanes *)(in + i + 16);
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

/* GELU and its derivative. Tanh form: x s with s = 1 / (1 + e^-2u), u = c (x + 0.044715 x^3). Exact
 * form: x Phi(x), with erf by Abramowitz & Stegun 7.1.26, error 1.5e-7. */

typedef struct { float value, slope; } Gelu;

static inline Gelu gelu_tanh(float x) {
    float square = x * x;
    float u = 0.7978845608f * (x + 0.044715f * x * square);
    float s = 1.0f / (1.0f + exponential(-2.0f * u));
    float inner = 2.0f * 0.7978845608f * (1.0f + 0.134145f * square);
    return (Gelu){x * s, s + x * s * (1.0f - s) * inner};
}

static inline Gelu gelu_erf(float x) {
    float e = exponential(-0.5f * x * x), t = 1.0f / (1.0f + 0.2316419f * fabsf(x));
    float tail = t * (0.254829592f +
        t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float upper = 0.5f * tail * e; /* 1 - Phi(|x|) */
    float cdf = x < 0.0f ? upper : 1.0f - upper;
    return (Gelu){x * cdf, cdf + x * 0.3989422804f * e};
}

/* words [count]: the first words of a stream */
void random_words(idx count, idx stream, uint64_t *words) {
#pragma omp parallel for schedule(static)
    for (idx i = 0; i < count; i++) words[i] = random_word(stream, i);
}

/* values [count] *= scale if kept, else 0 */
void drop(idx count, real *values, idx stream, int limit, float scale) {
#pragma omp parallel for schedule(static)
    for (idx block = 0; block < (count + DRAWN - 1) / DRAWN; block++) {
        uint64_t words[DRAWN / 4 + 2];
        idx first = block * DRAWN, some = count - first < DRAWN ? count - first : DRAWN;
        const draw *d = drawn(stream, first, some, words);
        real *x = values + first;
        for (idx i = 0; i < some; i++) x[i] = narrow(kept(d[i], limit) ? scale * wide(x[i]) : 0.0f);
    }
}

/* values [count] = gelu(values); slopes, unless NULL: its derivative */
void gelu_forward(idx count, real *values, real *slopes, int is_tanh) {
#pragma omp parallel for schedule(static)
    for (idx first = 0; first < count; first += DRAWN) {
        float value[DRAWN], slope[DRAWN];
        idx some = count - first < DRAWN ? count - first : DRAWN;
        real *x = values + first;
        if (is_tanh)
            for (idx i = 0; i < some; i++) {
                Gelu gelu = gelu_tanh(wide(x[i]));
                value[i] = gelu.value;
                slope[i] = gelu.slope;
            }
        else
            for (idx i = 0; i < some; i++) {
                Gelu gelu = gelu_erf(wide(x[i]));
                value[i] = gelu.value;
                slope[i] = gelu.slope;
            }
        round_line(some, 1.0f, value, x);
        if (slopes) round_line(some, 1.0f, slope, slopes + first);
    }
}

/* out [width] = column sums of partial sums [threads, width] */
static void add_partial(int threads, idx width, const float *sums, real *out) {
    for (idx i = 0; i < width; i++) {
        float sum = sums[i];
        for (int thread = 1; thread < threads; thread++) sum += sums[thread * width + i];
        out[i] = narrow(sum);
    }
}

/* gradient *= slope, [rows, width]; total [width]: column sums of the result */
void gelu_backward(idx rows, idx width, real *gradient, const real *slope, real *total) {
    int threads = omp_get_max_threads();
    float *sums = scratch(sizeof(float) * threads * width);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *sum = sums + thread * width;
        memset(sum, 0, sizeof(float) * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            real *g = gradient + row * width;
            const real *s = slope + row * width;
            for (idx i = 0; i < width; i++) {
                real rounded = narrow(wide(g[i]) * wide(s[i]));
                g[i] = rounded;
                sum[i] += wide(rounded);
            }
        }
    }
    add_partial(threads, width, sums, total);
}

/* dense = residual + scale * dropout(dense); out is its layer norm; [rows, width] each. mean,
 * deviation (reciprocal): [rows], for the backward pass. */
void residual_norm_forward(idx rows, idx width, real *dense, const real *residual, idx stream,
                           int limit, float scale, const real *weight, const real *bias,
                           float eps, real *out, float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        real *x = dense + row * width, *y = out + row * width;
        const real *r = residual + row * width;
        float sum = 0.0f, squares = 0.0f;
        if (!limit)
            for (idx i = 0; i < width; i++) x[i] = narrow(wide(r[i]) + wide(x[i]));
        for (idx from = 0; limit && from < width; from += DRAWN) {
            uint64_t words[DRAWN / 4 + 2];
            idx some = width - from < DRAWN ? width - from : DRAWN;
            const draw *d = drawn(stream, row * width + from, some, words);
            for (idx i = 0; i < some; i++)
                x[from + i] = narrow(wide(r[from + i]) +
                                     (kept(d[i], limit) ? scale * wide(x[from + i]) : 0.0f));
        }
        for (idx i = 0; i < width; i++) sum += wide(x[i]);
        float average = sum / width;
        for (idx i = 0; i < width; i++) {
            float centred = wide(x[i]) - average;
            squares += centred * centred;
        }
        float inverse = 1.0f / sqrtf(squares / width + eps);
        for (idx i = 0; i < width; i++)
            y[i] = narrow((wide(x[i]) - average) * inverse * wide(weight[i]) + wide(bias[i]));
        mean[row] = average;
        deviation[row] = inverse;
    }
}

/* out = layer norm of in, [rows, width]; bias may be NULL. mean, deviation: [rows]. */
void norm_forward(idx rows, idx width, const real *in, const real *weight, const real *bias,
                  float eps, real *out, float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        const real *x = in + row * width;
        real *y = out + row * width;
        float sum = 0.0f, squares = 0.0f;
        for (idx i = 0; i < width; i++) sum += wide(x[i]);
        float average = sum / width;
        for (idx i = 0; i < width; i++) {
            float centred = wide(x[i]) - average;
            squares += centred * centred;
        }
        float inverse = 1.0f / sqrtf(squares / width + eps);
        for (idx i = 0; i < width; i++)
            y[i] = narrow((wide(x[i]) - average) * inverse * wide(weight[i]) +
                          (bias ? wide(bias[i]) : 0.0f));
        mean[row] = average;
        deviation[row] = inverse;
    }
}

/* Backward pass of norm_forward: out = gradient of in, plus residual if it is not NULL. total [2,
 * width]: gradients of weight and bias. out may alias gradient or residual. */
void norm_backward(idx rows, idx width, const real *gradient, const real *in, const real *weight,
                   const float *mean, const float *deviation, const real *residual, real *out,
                   real *total) {
    int threads = omp_get_max_threads();
    float *sums = scratch(sizeof(float) * threads * 2 * width);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *of_weight = sums + thread * 2 * width, *of_bias = of_weight + width;
        memset(of_weight, 0, sizeof(float) * 2 * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            const real *g = gradient + row * width, *x = in + row * width;
            const real *r = residual ? residual + row * width : NULL;
            real *o = out + row * width;
            float average = mean[row], inverse = deviation[row], along = 0.0f, level = 0.0f;
            for (idx i = 0; i < width; i++) {
                float weighted = wide(g[i]) * wide(weight[i]);
                level += weighted;
                along += weighted * (wide(x[i]) - average);
            }
            along *= inverse / width;
            level /= width;
            for (idx i = 0; i < width; i++) {
                float one = wide(g[i]), normal = (wide(x[i]) - average) * inverse;
                of_weight[i] += one * normal;
                of_bias[i] += one;
                o[i] = narrow((r ? wide(r[i]) : 0.0f) +
                              inverse * (one * wide(weight[i]) - level - normal * along));
            }
        }
    }
    add_partial(threads, 2 * width, sums, total);
}

/* One row of geglu_forward; loops vectorise if both flags are constants */
static inline __attribute__((always_inline)) void gate_line(idx width, real *x, real *gate, real *y,
                                                            int is_tanh, int is_kept) {
    for (idx i = 0; i < width; i++) {
        float factor = wide(gate[i]);
        Gelu gelu = is_tanh ? gelu_tanh(wide(x[i])) : gelu_erf(wide(x[i]));
        y[i] = narrow(gelu.value * factor);
        if (is_kept) {
            x[i] = narrow(gelu.slope * factor);
            gate[i] = narrow(gelu.value);
        }
    }
}

/* out [rows, width] = gelu(first half of values) * second half. If is_kept, values [rows, 2 width]
 * are overwritten with the factors by which geglu_backward multiplies the gradient of out. */
void geglu_forward(idx rows, idx width, real *values, real *out, int is_tanh, int is_kept) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        real *x = values + 2 * row * width, *gate = x + width, *y = out + row * width;
        if (is_tanh && is_kept) gate_line(width, x, gate, y, 1, 1);
        if (is_tanh && !is_kept) gate_line(width, x, gate, y, 1, 0);
        if (!is_tanh && is_kept) gate_line(width, x, gate, y, 0, 1);
        if (!is_tanh && !is_kept) gate_line(width, x, gate, y, 0, 0);
    }
}

/* out [rows, 2 width]: both halves of factors times gradient [rows, width] */
void geglu_backward(idx rows, idx width, const real *gradient, const real *factors, real *out) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        const real *g = gradient + row * width, *f = factors + 2 * row * width;
        real *o = out + 2 * row * width;
        for (idx i = 0; i < width; i++) {
            o[i] = narrow(wide(g[i]) * wide(f[i]));
            o[width + i] = narrow(wide(g[i]) * wide(f[width + i]));
        }
    }
}

/* Transpose [rows <= TILE, width] into columns of a matrix whose lines are `stride` apart. Cache
 * lines are written whole: with 4,096 rows, all output lines fall into the same few sets. */
static void transpose_tile(idx rows, idx width, const real *in, real *out, idx stride) {
    idx column = 0;
#if defined(__SSE2__) && !defined(FLOAT32)
    for (; rows == TILE && column + 8 <= width; column += 8) {
        real turned[8][TILE] __attribute__((aligned(64)));
        for (idx row = 0; row < TILE; row += 8) {
            const real *p = in + row * width + column;
            __m128i a[8], b[8];
            for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(p + i * width));
            for (int i = 0; i < 4; i++) {
                b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) {
                    a[4 * i + 2 * j] = _mm_unpacklo_epi32(b[4 * i + j], b[4 * i + j + 2]);
                    a[4 * i + 2 * j + 1] = _mm_unpackhi_epi32(b[4 * i + j], b[4 * i + j + 2]);
                }
            for (int i = 0; i < 4; i++) {
                __m128i *even = (__m128i *)(turned[2 * i] + row);
                __m128i *odd = (__m128i *)(turned[2 * i + 1] + row);
                _mm_store_si128(even, _mm_unpacklo_epi64(a[i], a[i + 4]));
                _mm_store_si128(odd, _mm_unpackhi_epi64(a[i], a[i + 4]));
            }
        }
        for (int i = 0; i < 8; i++)
            memcpy(out + (column + i) * stride, turned[i], sizeof turned[i]);
    }
#endif
    for (; column < width; column++)
        for (idx row = 0; row < rows; row++) out[column * stride + row] = in[row * width + column];
}

/* total [width]: column sums of in [rows, width] */
void column_sums(idx rows, idx width, const real *in, real *total) {
    int threads = omp_get_max_threads();
    float *sums = scratch(sizeof(float) * threads * width);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *sum = sums + thread * width;
        memset(sum, 0, sizeof(float) * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++)
            for (idx i = 0; i < width; i++) sum[i] += wide(in[row * width + i]);
    }
    add_partial(threads, width, sums, total);
}

/* out [width, rows] is the transpose of in [rows, width] */
void transpose(idx rows, idx width, const real *in, real *out) {
#pragma omp parallel for schedule(static)
    for (idx tile = 0; tile < (rows + TILE - 1) / TILE; tile++) {
        idx first = tile * TILE, count = rows - first < TILE ? rows - first : TILE;
        transpose_tile(count, width, in + first * width, out + first, rows);
    }
}

/* Backward pass of residual_norm_forward. gradient, sum: [rows, width]. Out: residual [rows,
 * width]; dense [rows, width]; total [3, width]: gradients of weight and bias, column sums of
 * dense. */
void residual_norm_backward(idx rows, idx width, const real *gradient, const real *sum, idx stream,
                            int limit, float scale, const real *weight, const float *mean,
                            const float *deviation, real *residual, real *dense, real *total) {
    int threads = omp_get_max_threads();
    float *sums = scratch(sizeof(float) * threads * 3 * width);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *of_weight = sums + thread * 3 * width;
        float *of_bias = of_weight + width, *of_dense = of_bias + width;
        memset(of_weight, 0, sizeof(float) * 3 * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            const real *g = gradient + row * width, *s = sum + row * width;
            real *r = residual + row * width, *d = dense + row * width;
            float average = mean[row], inverse = deviation[row], along = 0.0f, level = 0.0f;
            for (idx i = 0; i < width; i++) {
                float weighted = wide(g[i]) * wide(weight[i]);
                level += weighted;
                along += weighted * (wide(s[i]) - average);
            }
            along *= inverse / width;
            level /= width;
            for (idx i = 0; i < width; i++) {
                float one = wide(g[i]), normal = (wide(s[i]) - average) * inverse;
                of_weight[i] += one * normal;
                of_bias[i] += one;
                r[i] = narrow(inverse * (one * wide(weight[i]) - level - normal * along));
            }
            if (!limit) memcpy(d, r, sizeof(real) * width);
            for (idx from = 0; limit && from < width; from += DRAWN) {
                uint64_t words[DRAWN / 4 + 2];
                idx some = width - from < DRAWN ? width - from : DRAWN;
                const draw *x = drawn(stream, row * width + from, some, words);
                for (idx i = 0; i < some; i++)
                    d[from + i] = narrow(kept(x[i], limit) ? scale * wide(r[from + i]) : 0.0f);
            }
            for (idx i = 0; i < width; i++) of_dense[i] += wide(d[i]);
        }
    }
    add_partial(threads, 3 * width, sums, total);
}

/* Attention in blocks of SIDE queries and SIDE keys, whose scores stay in cache (FlashAttention;
 * Dao et al. 2022). Operands have the input type; sums and softmax are float32. Scores are
 * transposed, [keys, queries]: each lane holds a query of its own, so the softmax needs no
 * reduction across lanes, and probabilities are directly an operand of the next product. The
 * backward pass recomputes them. Products work on whole tiles, padded with zeros along their depth,
 * and elsewhere with anything; everything else, on the keys and the lanes of queries that exist. */
#define SIDE 128
/* Products read operands in units of 32 bits: pairs of bfloat16, or one float32 each */
#define PAIR ((idx)(4 / sizeof(real)))
/* Strides of operands and of 32-bit values: an odd number of cache lines, so that the sixteen lines
 * of a tile fall into different cache sets */
#define LINE (SIDE + 16 * PAIR)
#define ROW (SIDE + 16)
/* rows multiplied at a time: enough sums to hide the latency of a product, few enough for the
 * registers */
#if defined(__AVX512F__)
#define ROWS 8
#else
#define ROWS 4
#endif
typedef uint32_t pair __attribute__((may_alias));
typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
/* Padding at the end of each array, so that loads from one are not mistaken for loads of recent
 * stores at the same page offset of another */
#define UNUSED 336
/* left operand, [rows, depth] */
typedef real Lines[SIDE * LINE + PAIR * UNUSED];
/* right operand, [depth / PAIR, columns]: pairs of lines */
typedef pair Pairs[SIDE / PAIR * ROW + UNUSED];
typedef float Matrix[SIDE * ROW + UNUSED];

static inline idx minimum(idx a, idx b) { return a < b ? a : b; }
static inline idx maximum(idx a, idx b) { return a > b ? a : b; }
static inline idx padded(idx count) { return (count + TILE - 1) / TILE * TILE; }
static inline idx in_lanes(idx count) { return (count + LANES - 1) / LANES * LANES; }

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
static int has_tiles(void) {
    const int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static int answer = -1;
    if (answer < 0) answer = !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return answer;
}

/* Eight tiles of 16 lines of 64 bytes: four sums, two tiles of a, two of b */
static void use_tiles(void) {
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

/* c = a b for a depth of at most two tiles: those of a stay in registers for all columns. Of the
 * last rows, the upper half of a tile pair is multiplied alone if it has all of them. */
static void multiply_shallow_tiles(idx rows, idx columns, idx depth, const real *a, const pair *b,
                                   float *c) {
    for (idx i = 0; i < rows; i += TILE) {
        const real *left = a + i * LINE;
        int is_tall = i + 16 < rows;
        _tile_loadd(2, left, 2 * LINE);
        _tile_loadd(3, left + 16 * LINE, 2 * LINE);
        if (depth > TILE) {
            _tile_loadd(4, left + TILE, 2 * LINE);
            _tile_loadd(5, left + 16 * LINE + TILE, 2 * LINE);
        }
        for (idx j = 0; j < columns; j += 16) {
            float *out = c + i * ROW + j;
            _tile_zero(0);
            _tile_zero(1);
            _tile_loadd(6, b + j, 4 * ROW);
            _tile_dpbf16ps(0, 2, 6);
            if (is_tall) _tile_dpbf16ps(1, 3, 6);
            if (depth > TILE) {
                _tile_loadd(7, b + TILE / 2 * ROW + j, 4 * ROW);
                _tile_dpbf16ps(0, 4, 7);
                if (is_tall) _tile_dpbf16ps(1, 5, 7);
            }
            _tile_stored(0, out, 4 * ROW);
            if (is_tall) _tile_stored(1, out + 16 * ROW, 4 * ROW);
        }
    }
}

static void multiply_tiles(idx rows, idx columns, idx depth, const real *a, const pair *b,
                           int is_added, float *c) {
    depth = padded(depth);
    if (depth <= 2 * TILE && !is_added) {
        multiply_shallow_tiles(rows, columns, depth, a, b, c);
        return;
    }
    for (idx j = 0; j < columns; j += TILE)
        for (idx i = 0; i < rows; i += TILE) {
            const real *left = a + i * LINE;
            float *out = c + i * ROW + j;
            int is_wide = j + 16 < columns, is_tall = i + 16 < rows;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            if (is_added) {
                _tile_loadd(0, out, 4 * ROW);
                if (is_wide) _tile_loadd(1, out + 16, 4 * ROW);
                if (is_tall) _tile_loadd(2, out + 16 * ROW, 4 * ROW);
                if (is_wide && is_tall) _tile_loadd(3, out + 16 * ROW + 16, 4 * ROW);
            }
            for (idx k = 0; k < depth; k += TILE) {
                const pair *right = b + k / 2 * ROW + j;
                _tile_loadd(4, left + k, 2 * LINE);
                _tile_loadd(6, right, 4 * ROW);
                _tile_dpbf16ps(0, 4, 6);
                if (is_tall) {
                    _tile_loadd(5, left + 16 * LINE + k, 2 * LINE);
                    _tile_dpbf16ps(2, 5, 6);
                }
                if (is_wide) {
                    _tile_loadd(7, right + 16, 4 * ROW);
                    _tile_dpbf16ps(1, 4, 7);
                    if (is_tall) _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, out, 4 * ROW);
            if (is_wide) _tile_stored(1, out + 16, 4 * ROW);
            if (is_tall) _tile_stored(2, out + 16 * ROW, 4 * ROW);
            if (is_wide && is_tall) _tile_stored(3, out + 16 * ROW + 16, 4 * ROW);
        }
}
#endif

/* c [rows, columns] = a b, or c += a b if is_added, for at least as many rows and columns; the depth
 * is a whole number of tiles, padded with zeros */
static void multiply(idx rows, idx columns, idx depth, const real *a, const pair *b, int is_added,
                     float *c) {
#if defined(MAY_HAVE_TILES)
    if (has_tiles()) {
        multiply_tiles(rows, columns, depth, a, b, is_added, c);
        return;
    }
#endif
    rows = padded(rows), columns = padded(columns), depth = padded(depth);
    for (idx j = 0; j < columns; j += 2 * LANES)
        for (idx i = 0; i < rows; i += ROWS) {
            lanes left[ROWS] = {0}, right[ROWS] = {0};
            for (idx k = 0; k < depth / PAIR; k++) {
                const pairs *line = (const pairs *)(b + k * ROW + j);
                pairs first = line[0], second = line[1];
#if defined(__AVX__)
                /* keep in registers instead of reloading ROWS times */
                __asm__("" : "+x"(first), "+x"(second));
#endif
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    pair x = ((const pair *)(a + (i + r) * LINE))[k];
                    left[r] = add_products(left[r], x, first);
                    right[r] = add_products(right[r], x, second);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                lanes *line = (lanes *)(c + (i + r) * ROW + j);
                if (is_added) left[r] += line[0], right[r] += line[1];
                line[0] = left[r];
                line[1] = right[r];
            }
        }
}

/* out [rows, width] = in, with lines `stride` apart */
static void copy_lines(idx rows, idx width, const real *in, idx stride, real *out) {
    for (idx row = 0; row < padded(rows); row++)
        for (idx i = 0; i < width; i += TILE) {
            real *to = out + row * LINE + i;
            const real *from = in + row * stride + i;
            __builtin_prefetch(from + 12 * stride);
            if (row < rows && i + TILE <= width) {
                memcpy(to, from, sizeof(real) * TILE);
            } else {
                memset(to, 0, sizeof(real) * TILE);
                if (row < rows) memcpy(to, from, sizeof(real) * minimum(width - i, TILE));
            }
        }
}

static inline pair paired(real first, real second) {
#if defined(FLOAT32)
    pair only;
    memcpy(&only, &first, 4);
    return only;
#else
    return first | (pair)second << 16;
#endif
}

/* Convert lines [rows, width] into a right operand */
static void pair_lines(idx rows, idx width, const real *in, pair *out) {
    for (idx row = 0; row < padded(rows); row += PAIR)
        for (idx i = 0; i < padded(width); i++)
            out[row / PAIR * ROW + i] = paired(in[row * LINE + i], in[(row + PAIR - 1) * LINE + i]);
}

/* Transpose in place */
static inline __attribute__((always_inline)) void turn(pairs line[LANES]) {
    /* Swap the bits of line and column numbers one by one. */
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
static void transpose_pairs(idx rows, idx columns, const pair *in, idx stride, pair *out,
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

/* Convert the transpose of lines [rows, width] into a right operand */
static void pair_columns(idx rows, idx width, const real *in, pair *out) {
    transpose_pairs(in_lanes(rows), padded(width) / PAIR, (const pair *)in, LINE / PAIR, out, ROW);
}

/* out [width, rows] is the transpose of lines [rows, width]; overwrites pairs */
static void transpose_lines(idx rows, idx width, const real *in, pair *pairs, real *out) {
    pair_lines(rows, width, in, pairs);
    transpose_pairs(padded(rows) / PAIR, padded(width), pairs, ROW, (pair *)out, LINE / PAIR);
}

/* Values rounded to the input type */
static inline lanes rounded(lanes values) {
#if defined(FLOAT32)
    return values;
#else
    return (lanes)(((pairs)values + 0x8000) & 0xffff0000);
#endif
}

/* A line of a right operand: PAIR lines of rounded values */
static inline pairs paired_lines(const lanes values[PAIR]) {
#if defined(FLOAT32)
    return (pairs)values[0];
#else
    return (pairs)values[0] >> 16 | (pairs)values[1];
#endif
}

/* Convert values [rows, columns] into a right operand */
static void pair_values(idx rows, idx columns, const float *in, pair *out) {
    for (idx row = 0; row < rows; row += PAIR)
        for (idx i = 0; i < columns; i += LANES) {
            lanes values[PAIR];
            for (int k = 0; k < PAIR; k++)
                values[k] = rounded(*(const lanes *)(in + (row + k) * ROW + i));
            *(pairs *)(out + row / PAIR * ROW + i) = paired_lines(values);
        }
}

/* out [rows, columns] = 0, in whole lanes */
static void clear(idx rows, idx columns, float *out) {
    for (idx row = 0; row < rows; row++)
        for (idx i = 0; i < columns; i += LANES) *(lanes *)(out + row * ROW + i) = (lanes){0};
}

/* Convert values [rows, columns] into lines */
static void round_lines(idx rows, idx columns, const float *in, real *out) {
    for (idx row = 0; row < rows; row++) round_line(columns, 1.0f, in + row * ROW, out + row * LINE);
}

/* out [rows, width], lines `stride` apart, = factor [rows] * transpose of in; overwrites transposed */
static void round_transposed(idx rows, idx width, const float *factor, const float *in,
                             float *transposed, real *out, idx stride) {
    transpose_pairs(in_lanes(width), in_lanes(rows), (const pair *)in, ROW, (pair *)transposed, ROW);
    for (idx row = 0; row < rows; row++)
        round_line(width, factor[row], transposed + row * ROW, out + row * stride);
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

/* 2^x; 0 for minus infinity, and NaN stays NaN. 2^n 2^r with a minimax polynomial for 2^r: for
 * bfloat16 on AVX-512 with error 9e-5, a twentieth of its resolution, otherwise as in
 * `exponential`. */
static inline lanes power_of_two(lanes x) {
#if defined(__AVX512F__) && !defined(FLOAT32)
    lanes r = (lanes)_mm512_reduce_ps((__m512)x, 1);
    lanes p = 7.7067240e-2f * r + 2.2764498e-1f;
    p = p * r + 6.9511663e-1f;
    p = p * r + 1.0f;
    return (lanes)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    lanes lowest = (lanes){0} - 126.0f;
    lanes inside = -larger(-larger(x, lowest), lowest - 1.0f); /* beyond, the result is huge */
    pairs n = (pairs)__builtin_convertvector(inside + 126.5f, integers); /* n + 126 >= 0 */
    lanes r = x - (__builtin_convertvector((integers)n, lanes) - 126.0f);
    lanes p = 1.3264727e-3f * r + 9.6715129e-3f;
    p = p * r + 5.5507337e-2f;
    p = p * r + 2.4022242e-1f;
    p = p * r + 6.9314698e-1f;
    p = p * r + 1.0f;
    return (lanes)((pairs)(p * (lanes)((n + 1) << 23)) & ~(pairs)(x < lowest));
#endif
}

#define LOG2E 1.44269504f

/* Arguments common to both passes: see attention_forward */
typedef struct {
    idx sequences, heads, width, tokens, before, after;
    const int64_t *starts, *lengths, *numbers, *sides;
    const real *parts;
    const float *cosine, *sine;
    idx stream;
    int limit;
    float scale;
} Attention;

/* One head of one sequence */
typedef struct {
    const Attention *of;
    idx length, first, statistics; /* offset of its first token in [T, A, K] and [A, T] */
    idx number, side;
    const real *query, *key, *value;
    idx stride; /* between lines of query, key and value */
    const float *cosine, *sine;
} Head;

static Head head_of(const Attention *a, idx at) {
    idx s = at / a->heads, head = at % a->heads, line = a->heads * a->width;
    const real *query = a->parts + 3 * a->starts[s] * line + head * a->width;
    return (Head){
        .of = a, .length = a->lengths[s], .first = a->starts[s] * line + head * a->width,
        .statistics = head * a->tokens + a->starts[s],
        .number = a->numbers[s] + head * a->sides[s] * a->sides[s], .side = a->sides[s],
        .query = query, .key = query + line, .value = query + 2 * line, .stride = 3 * line,
        .cosine = a->cosine ? a->cosine + a->starts[s] * a->width / 2 : NULL,
        .sine = a->sine ? a->sine + a->starts[s] * a->width / 2 : NULL};
}

/* Copy queries or keys `in` of the tokens from `at` into lines, rotated by the angles of their
 * positions */
static void copy_rotated(const Head *h, idx at, idx tokens, const real *in, real *out) {
    idx half = h->of->width / 2;
    copy_lines(tokens, h->of->width, in + at * h->stride, h->stride, out);
    for (idx row = 0; h->cosine && row < tokens; row++) {
        const float *c = h->cosine + (at + row) * half, *s = h->sine + (at + row) * half;
        real *x = out + row * LINE, *y = x + half;
#pragma GCC ivdep
        for (idx i = 0; i < half; i++) {
            float first = wide(x[i]), second = wide(y[i]);
            x[i] = narrow(first * c[i] - second * s[i]);
            y[i] = narrow(second * c[i] + first * s[i]);
        }
    }
}

/* Undo the rotation of a gradient in [tokens, width], and write it times factor to out */
static void rotate_back(const Head *h, idx at, idx tokens, float factor, float *in, real *out) {
    idx half = h->of->width / 2;
    for (idx row = 0; row < tokens; row++) {
        float *x = in + row * ROW, *y = x + half;
        if (h->cosine) {
            const float *c = h->cosine + (at + row) * half, *s = h->sine + (at + row) * half;
#pragma GCC ivdep
            for (idx i = 0; i < half; i++) {
                float first = x[i], second = y[i];
                x[i] = first * c[i] + second * s[i];
                y[i] = second * c[i] - first * s[i];
            }
        }
        round_line(h->of->width, factor, x, out + (at + row) * h->stride);
    }
}

/* At most SIDE queries, and keys in strips of TILE */
typedef struct { idx query, queries, key, keys; } Part;

/* At most `most` queries from `query`, and the keys visible to them in the block from `key` */
static Part visible_part(const Head *h, idx query, idx most, idx key) {
    idx queries = minimum(most, h->length - query);
    idx from = maximum(query - h->of->before - key, 0) / TILE * TILE;
    idx to = minimum(minimum(h->length, query + queries + h->of->after) - key, SIDE);
    return (Part){query, queries, key + from, maximum(padded(to) - from, 0)};
}

/* At most TILE keys of a part */
static Part strip_of(const Head *h, Part part, idx from) {
    idx key = part.key + from;
    return (Part){part.query, part.queries, key, minimum(TILE, h->length - key)};
}

/* Set scores [keys, queries] to minus infinity where a query does not see a key */
static void mask_scores(const Head *h, Part strip, float *scores) {
    idx columns = in_lanes(strip.queries), last = strip.key + strip.keys - 1;
    int is_seen = last - h->of->after <= strip.query &&
                  strip.query + strip.queries - 1 - h->of->before <= strip.key;
    for (idx row = 0; !is_seen && row < strip.keys; row++) {
        idx key = strip.key + row;
        idx from = minimum(maximum(key - h->of->after - strip.query, 0), columns);
        idx to = maximum(key + h->of->before + 1 - strip.query, 0);
        for (idx i = 0; i < from; i++) scores[row * ROW + i] = -INFINITY;
        for (idx i = to; i < columns; i++) scores[row * ROW + i] = -INFINITY;
    }
}

/* out [keys, queries]: 1 if a probability is kept, 0 if it is dropped; four keys of a query share a
 * random word */
static void draw_strip(const Head *h, Part strip, float *out) {
    uint64_t step = h->side / 4 * GOLDEN;
    for (idx row = 0; row < strip.keys; row += 4) {
        uint64_t number = (h->number + strip.query * h->side + strip.key + row) / 4;
        uint64_t first = h->of->stream + (number + 1) * GOLDEN;
        uint32_t bits[2][SIDE];
        for (int i = 0; i < in_lanes(strip.queries); i++) {
            uint64_t word = mixed(first + i * step);
            bits[0][i] = word;
            bits[1][i] = word >> 32;
        }
        for (int j = 0; j < 4; j++)
            for (idx i = 0; i < in_lanes(strip.queries); i++)
                out[(row + j) * ROW + i] = kept(bits[j / 2][i] >> 16 * (j % 2), h->of->limit);
    }
}

/* values [keys, queries] *= factors */
static void scale_strip(Part strip, const float *factors, float *values) {
    for (idx row = 0; row < strip.keys; row++)
        for (idx i = 0; i < in_lanes(strip.queries); i++) values[row * ROW + i] *= factors[row * ROW + i];
}

/* Running softmax of TILE queries: maxima in units of ln 2, and sums of 2^(score - maximum) */
typedef struct { float largest[TILE], sum[TILE]; } Softmax;

/* Before its first key, a query has a maximum below every score */
#define LOWEST -1e30f
/* A maximum need not be that of all keys, as weights of any size have the same relative precision:
 * it is raised when a sum gets halfway to float32's limit. */
#define MOST 0x1p64f

/* Raise the maxima to those of factor * scores [keys, queries], and rescale sums, and values [width,
 * queries], accordingly */
static void raise_maxima(Part strip, float factor, const float *scores, Softmax *softmax, idx width,
                         float *values) {
    for (idx i = 0; i < strip.queries; i += LANES) {
        lanes *largest = (lanes *)(softmax->largest + i), before = *largest, found = before;
        for (idx row = 0; row < strip.keys; row++)
            found = larger(found, factor * *(const lanes *)(scores + row * ROW + i));
        lanes shrink = power_of_two(before - found);
        *largest = found;
        *(lanes *)(softmax->sum + i) *= shrink;
        for (idx row = 0; row < width; row++) *(lanes *)(values + row * ROW + i) *= shrink;
    }
}

/* weights, a right operand [TILE, queries], = 2^(factor * scores - maximum), times `kept` if given,
 * and 0 behind the last key; sums: the present ones plus the weights as rounded, before dropout. Fetches the keys that follow,
 * from `next`. Returns whether a sum exceeds MOST, or is NaN. */
static int exponentiate(Part strip, float factor, const float *scores, const float *kept,
                        const Softmax *softmax, float *sums, pair *weights, const real *next) {
    pairs beyond = {0};
    for (idx i = 0; i < strip.queries; i += LANES) {
        lanes largest = *(const lanes *)(softmax->largest + i);
        lanes sum = *(const lanes *)(softmax->sum + i);
        for (idx row = 0; row < TILE; row += PAIR) {
            lanes powers[PAIR] = {0};
            for (idx part = 0; part < 2; part++)
                __builtin_prefetch(next + (row + i / LANES) * LINE + part * TILE);
            for (int k = 0; k < PAIR && row + k < strip.keys; k++) {
                idx at = (row + k) * ROW + i;
                powers[k] = rounded(power_of_two(factor * *(const lanes *)(scores + at) - largest));
                sum += powers[k];
                if (kept) powers[k] *= *(const lanes *)(kept + at);
            }
            *(pairs *)(weights + row / PAIR * ROW + i) = paired_lines(powers);
        }
        *(lanes *)(sums + i) = sum;
        beyond |= ~(pairs)(sum <= MOST);
    }
    pair any = 0;
    for (int i = 0; i < LANES; i++) any |= beyond[i];
    return any != 0;
}

/* A block of queries as a right operand, and its accumulated context vectors, transposed */
typedef struct {
    Pairs query;
    Matrix context;
    Softmax softmax[SIDE / TILE];
} Queries;

/* Blocks of queries (in the backward pass, of keys) that share one pass over the other blocks,
 * which come from the L3 cache */
#define GROUP 4

/* Working memory of one thread, followed by the blocks of a head */
typedef struct {
    Lines lines;
    Pairs pairs, weights;
    Matrix scores, kept, gradient;
    union {
        Queries queries[GROUP];
        struct { Matrix key, value; } gradients[GROUP];
    };
} Workspace;

static Workspace *take_workspace(idx length, size_t block) {
#if defined(MAY_HAVE_TILES)
    if (has_tiles()) use_tiles();
#endif
    return scratch(sizeof(Workspace) + block * ((length + SIDE - 1) / SIDE));
}

static void release_workspace(void) {
#if defined(MAY_HAVE_TILES)
    if (has_tiles()) _tile_release();
#endif
}

static idx longest_of(const Attention *a) {
    idx longest = 0;
    for (idx s = 0; s < a->sequences; s++) longest = maximum(longest, a->lengths[s]);
    return longest;
}

/* Keys and values as left operands of scores and of context vectors */
typedef struct { Lines key, value; } Keys;

/* Accumulate one part for its queries, from the column `at` of their block on. Products with old
 * weights are added before a rescaling. */
static void part_forward(const Head *h, Part part, Workspace *w, const Keys *of_keys, idx key,
                         Queries *q, idx at) {
    idx width = h->of->width, queries = part.queries, skipped = part.key - key, summed = 0;
    float factor = LOG2E / sqrtf(width), *scores = w->scores, *context = q->context + at;
    float *kept = h->of->limit ? w->kept : NULL;
    Softmax *softmax = q->softmax + at / TILE;
    for (idx from = 0; from < part.keys; from += TILE) {
        Part strip = strip_of(h, part, from);
        const real *keys = of_keys->key + (skipped + from) * LINE, *next = keys + TILE * LINE;
        pair *weights = w->weights + from / PAIR * ROW;
        float sums[TILE];
        multiply(strip.keys, queries, width, keys, q->query + at, 0, scores);
        mask_scores(h, strip, scores);
        if (kept) draw_strip(h, strip, kept);
        if (softmax->largest[0] == LOWEST ||
            exponentiate(strip, factor, scores, kept, softmax, sums, weights, next)) {
            multiply(width, queries, from - summed, of_keys->value + skipped + summed,
                     w->weights + summed / PAIR * ROW, 1, context);
            summed = from;
            raise_maxima(strip, factor, scores, softmax, width, context);
            exponentiate(strip, factor, scores, kept, softmax, sums, weights, next);
        }
        memcpy(softmax->sum, sums, sizeof sums);
    }
    multiply(width, queries, part.keys - summed, of_keys->value + skipped + summed,
             w->weights + summed / PAIR * ROW, 1, context);
}

/* out [queries, width] of the queries [begin, end) */
static void head_forward(const Head *h, idx begin, idx end, Workspace *w, Keys *blocks, real *out,
                         float *log_sums) {
    idx width = h->of->width, line = h->of->heads * width;
    idx first = maximum(begin - h->of->before, 0) / SIDE * SIDE;
    for (idx key = first; key < minimum(end + h->of->after, h->length); key += SIDE) {
        Keys *block = blocks + (key - first) / SIDE;
        idx keys = minimum(SIDE, h->length - key);
        copy_rotated(h, key, keys, h->key, block->key);
        copy_lines(keys, width, h->value + key * h->stride, h->stride, w->lines);
        transpose_lines(keys, width, w->lines, w->pairs, block->value);
    }
    for (idx group = begin; group < end; group += GROUP * SIDE) {
        idx group_end = minimum(group + GROUP * SIDE, end);
        for (idx query = group; query < group_end; query += SIDE) {
            Queries *q = w->queries + (query - group) / SIDE;
            idx queries = minimum(SIDE, h->length - query);
            copy_rotated(h, query, queries, h->query, w->lines);
            pair_columns(queries, width, w->lines, q->query);
            clear(width, queries, q->context);
            for (idx at = 0; at < queries; at += TILE)
                for (int i = 0; i < TILE; i++)
                    q->softmax[at / TILE].largest[i] = LOWEST, q->softmax[at / TILE].sum[i] = 0;
        }
        idx stop = minimum(group_end + h->of->after, h->length);
        for (idx key = maximum(group - h->of->before, 0) / SIDE * SIDE; key < stop; key += SIDE)
            for (idx query = group; query < group_end; query += TILE)
                part_forward(h, visible_part(h, query, TILE, key), w, blocks + (key - first) / SIDE,
                             key, w->queries + (query - group) / SIDE, (query - group) % SIDE);
        for (idx query = group; query < group_end; query += SIDE) {
            Queries *q = w->queries + (query - group) / SIDE;
            idx queries = minimum(SIDE, h->length - query);
            float factors[SIDE];
            for (idx i = 0; i < queries; i++) {
                const Softmax *softmax = q->softmax + i / TILE;
                log_sums[query + i] = softmax->largest[i % TILE] + log2f(softmax->sum[i % TILE]);
                factors[i] = h->of->scale / softmax->sum[i % TILE];
            }
            round_transposed(queries, width, factors, q->context, w->scores, out + query * line, line);
        }
    }
}

/* parts [tokens, 3, heads, width <= SIDE]: query, key and value. places [4, sequences]: per
 * sequence its first token, its length, the first random number that belongs to it, and the random
 * numbers per query, a multiple of four; a head uses that number squared. A query sees `before`
 * keys before its own position and `after` keys after it. cosine, sine [tokens, width / 2], or
 * NULL: rotations of queries and keys. out [tokens, heads, width]; log_sums [heads, tokens]: log2
 * of each query's softmax denominator. */
void attention_forward(idx sequences, idx heads, idx width, const int64_t *places, idx tokens,
                       idx before, idx after, const real *parts, const float *cosine,
                       const float *sine, idx stream, int limit, float scale, real *out,
                       float *log_sums) {
    Attention a = {sequences, heads, width, tokens, before, after, places, places + sequences,
                   places + 2 * sequences, places + 3 * sequences, parts, cosine, sine, stream,
                   limit, scale};
    /* Keys are prepared once for all queries of a head, unless there are fewer heads than threads.
     * */
    idx longest = longest_of(&a), of_all = maximum(sequences * heads, 1);
    idx threads = omp_get_max_threads();
    idx pieces = maximum(minimum((longest + SIDE - 1) / SIDE, (threads + of_all - 1) / of_all), 1);
#pragma omp parallel
    {
        Workspace *w = take_workspace(longest, sizeof(Keys));
#pragma omp for schedule(dynamic)
        for (idx at = 0; at < sequences * heads * pieces; at++) {
            Head h = head_of(&a, at / pieces);
            idx blocks = (h.length + SIDE - 1) / SIDE, piece = at % pieces;
            idx begin = blocks * piece / pieces * SIDE, end = blocks * (piece + 1) / pieces * SIDE;
            if (begin < end)
                head_forward(&h, begin, minimum(end, h.length), w, (Keys *)(w + 1), out + h.first,
                             log_sums + h.statistics);
        }
        release_workspace();
    }
}

/* Some tokens in the form of each operand, and their softmax statistics */
typedef struct {
    Lines key, key_transposed, value;
    Pairs query, query_transposed, gradient, gradient_transposed;
    Matrix dquery; /* transposed */
    float log_sums[SIDE], along[SIDE];
} Block;

/* along: the dot product of each query's context vector and its gradient, which equals the sum of
 * its probabilities times their gradients */
static void prepare_block(const Head *h, idx at, Workspace *w, const real *out,
                          const float *log_sums, const real *gradient, Block *block) {
    idx width = h->of->width, line = h->of->heads * width, tokens = minimum(SIDE, h->length - at);
    copy_rotated(h, at, tokens, h->key, block->key);
    transpose_lines(tokens, width, block->key, w->pairs, block->key_transposed);
    copy_lines(tokens, width, h->value + at * h->stride, h->stride, block->value);
    copy_rotated(h, at, tokens, h->query, w->lines);
    pair_lines(tokens, width, w->lines, block->query);
    pair_columns(tokens, width, w->lines, block->query_transposed);
    copy_lines(tokens, width, gradient + at * line, line, w->lines);
    pair_lines(tokens, width, w->lines, block->gradient);
    pair_columns(tokens, width, w->lines, block->gradient_transposed);
    clear(width, tokens, block->dquery);
    memset(block->log_sums, 0, sizeof(float) * in_lanes(tokens));
    memset(block->along, 0, sizeof(float) * in_lanes(tokens));
    memcpy(block->log_sums, log_sums + at, sizeof(float) * tokens);
    for (idx i = 0; i < tokens; i++)
        for (idx j = 0; j < width; j++)
            block->along[i] += wide(w->lines[i * LINE + j]) * wide(out[(at + i) * line + j]);
}

/* scores [keys, queries] become probabilities; gradient, with respect to scale times the kept ones,
 * becomes that of the scores; both become 0 behind the last key and in unused lanes */
static void softmax_backward(Part strip, float scale, float factor, const Block *of_queries,
                            float *scores, float *gradient) {
    for (idx i = 0; i < padded(strip.queries); i += LANES) {
        idx keys = i < strip.queries ? strip.keys : 0;
        for (idx row = 0; row < keys; row++) {
            lanes *s = (lanes *)(scores + row * ROW + i), *g = (lanes *)(gradient + row * ROW + i);
            *s = power_of_two(LOG2E * factor * *s - *(const lanes *)(of_queries->log_sums + i));
            *g = *s * (scale * *g - *(const lanes *)(of_queries->along + i));
        }
        for (idx row = keys; row < TILE; row++)
            *(lanes *)(scores + row * ROW + i) = *(lanes *)(gradient + row * ROW + i) = (lanes){0};
    }
}

/* Accumulate the gradients of one part: of its queries, and of keys and values in the block from
 * `key` */
static void part_backward(const Head *h, Part part, Workspace *w, Block *of_queries,
                          const Block *of_keys, idx key, float *dkey, float *dvalue) {
    idx width = h->of->width, queries = part.queries, columns = padded(queries);
    idx skipped = part.key - key;
    for (idx from = 0; from < part.keys; from += TILE) {
        Part strip = strip_of(h, part, from);
        idx first = skipped + from;
        multiply(strip.keys, queries, width, of_keys->key + first * LINE,
                 of_queries->query_transposed, 0, w->scores);
        mask_scores(h, strip, w->scores);
        multiply(strip.keys, queries, width, of_keys->value + first * LINE,
                 of_queries->gradient_transposed, 0, w->gradient);
        if (h->of->limit) {
            draw_strip(h, strip, w->kept);
            scale_strip(strip, w->kept, w->gradient);
        }
        softmax_backward(strip, h->of->scale, 1.0f / sqrtf(width), of_queries, w->scores,
                        w->gradient);
        if (h->of->limit) scale_strip(strip, w->kept, w->scores);
        round_lines(TILE, columns, w->scores, w->lines);
        multiply(strip.keys, width, queries, w->lines, of_queries->gradient, 1, dvalue + first * ROW);
        round_lines(TILE, columns, w->gradient, w->lines);
        multiply(strip.keys, width, queries, w->lines, of_queries->query, 1, dkey + first * ROW);
        pair_values(TILE, columns, w->gradient, w->weights + from / PAIR * ROW);
    }
    if (part.keys)
        multiply(width, queries, part.keys, of_keys->key_transposed + skipped, w->weights, 1,
                 of_queries->dquery);
}

/* The gradients of query, key and value, given that of out */
static void head_backward(const Head *h, Workspace *w, Block *blocks, const real *out,
                          const float *log_sums, const real *gradient, real *dparts) {
    idx width = h->of->width, line = h->of->heads * width;
    float factor = 1.0f / sqrtf(width);
    for (idx at = 0; at < h->length; at += SIDE)
        prepare_block(h, at, w, out, log_sums, gradient, blocks + at / SIDE);
    for (idx group = 0; group < h->length; group += GROUP * SIDE) {
        idx end = minimum(group + GROUP * SIDE, h->length);
        for (idx key = group; key < end; key += SIDE) {
            clear(minimum(SIDE, end - key), width, w->gradients[(key - group) / SIDE].key);
            clear(minimum(SIDE, end - key), width, w->gradients[(key - group) / SIDE].value);
        }
        idx stop = minimum(end + h->of->before, h->length);
        for (idx query = maximum(group - h->of->after, 0) / SIDE * SIDE; query < stop; query += SIDE)
            for (idx key = group; key < end; key += SIDE)
                part_backward(h, visible_part(h, query, SIDE, key), w, blocks + query / SIDE,
                              blocks + key / SIDE, key, w->gradients[(key - group) / SIDE].key,
                              w->gradients[(key - group) / SIDE].value);
        for (idx key = group; key < end; key += SIDE) {
            idx block = (key - group) / SIDE, keys = minimum(SIDE, h->length - key);
            rotate_back(h, key, keys, factor, w->gradients[block].key, dparts + line);
            for (idx row = 0; row < keys; row++)
                round_line(width, h->of->scale, w->gradients[block].value + row * ROW,
                           dparts + (key + row) * h->stride + 2 * line);
        }
    }
    for (idx at = 0; at < h->length; at += SIDE) {
        idx queries = minimum(SIDE, h->length - at);
        transpose_pairs(in_lanes(width), in_lanes(queries), (const pair *)blocks[at / SIDE].dquery,
                        ROW, (pair *)w->scores, ROW);
        rotate_back(h, at, queries, factor, w->scores, dparts);
    }
}

/* The gradient of parts [tokens, 3, heads, width], given that of attention_forward's out */
void attention_backward(idx sequences, idx heads, idx width, const int64_t *places, idx tokens,
                        idx before, idx after, const real *parts, const float *cosine,
                        const float *sine, idx stream, int limit, float scale, const real *out,
                        const float *log_sums, const real *gradient, real *dparts) {
    Attention a = {sequences, heads, width, tokens, before, after, places, places + sequences,
                   places + 2 * sequences, places + 3 * sequences, parts, cosine, sine, stream,
                   limit, scale};
    idx longest = longest_of(&a);
#pragma omp parallel
    {
        Workspace *w = take_workspace(longest, sizeof(Block));
#pragma omp for schedule(dynamic)
        for (idx at = 0; at < sequences * heads; at++) {
            Head h = head_of(&a, at);
            head_backward(&h, w, (Block *)(w + 1), out + h.first, log_sums + h.statistics,
                          gradient + h.first, dparts + (h.query - parts));
        }
        release_workspace();
    }
}

#if defined(MAY_HAVE_TILES)
/* Matrix products by the tile unit, for those that a library computes slowly (products.py). Operands
 * are rearranged for it in the cache, STEPS * TILE of the depth at a time, or at once up to ONCE *
 * TILE, so that sums need not be stored. Every sum has the same order for any number of threads. */
#define STEPS 8
#define ONCE 16
/* Sums that stay in the second level of the cache, beside the operands */
#define SUMS (384 * 1024)
/* [TILE, TILE] values: of an operand as two tiles, of sums as four */
#define SQUARE (TILE * TILE)

/* Pairs of lines of in [rows, TILE]: line `at` with the next, zero where there is none. Of eight
 * columns each, low takes the first four, high the others. */
static inline void interleave(idx rows, const real *in, idx stride, idx at, __m512i *low,
                              __m512i *high) {
    __m512i zero = _mm512_setzero_si512(), even = zero, odd = zero;
    if (at < rows) even = _mm512_loadu_si512(in + at * stride);
    if (at + 1 < rows) odd = _mm512_loadu_si512(in + (at + 1) * stride);
    *low = _mm512_unpacklo_epi16(even, odd);
    *high = _mm512_unpackhi_epi16(even, odd);
}

/* The column of the i-th value in low or high */
static inline idx interleaved(idx i, int is_high) { return i / 4 * 8 + i % 4 + 4 * is_high; }

/* out [TILE, TILE] is the transpose of in [rows, TILE] */
static void tile_left(idx rows, const real *in, idx stride, real *out) {
    pairs low[LANES], high[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        interleave(rows, in, stride, 2 * i, (__m512i *)(low + i), (__m512i *)(high + i));
    turn(low);
    turn(high);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        *(pairs *)(out + interleaved(i, 0) * TILE) = low[i];
        *(pairs *)(out + interleaved(i, 1) * TILE) = high[i];
    }
}

/* out: a tile with the low columns of in [rows, TILE], and one with the high ones */
static void tile_right(idx rows, const real *in, idx stride, real *out) {
    for (idx i = 0; i < LANES; i++)
        interleave(rows, in, stride, 2 * i, (__m512i *)(out + i * TILE),
                   (__m512i *)(out + SQUARE / 2 + i * TILE));
}

/* sums = a b, or sums += a b if is_added. Lines of a are `stride` apart, its steps `next`. */
static inline void add_steps(idx steps, const real *a, idx stride, idx next, const real *b,
                             int is_added, float *sums) {
    if (is_added) {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + SQUARE / 4, 64);
        _tile_loadd(2, sums + SQUARE / 2, 64);
        _tile_loadd(3, sums + 3 * SQUARE / 4, 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (idx step = 0; step < steps; step++, a += next, b += SQUARE) {
        _tile_loadd(4, a, 2 * stride);
        _tile_loadd(5, a + LANES * stride, 2 * stride);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + SQUARE / 2, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + SQUARE / 4, 64);
    _tile_stored(2, sums + SQUARE / 2, 64);
    _tile_stored(3, sums + 3 * SQUARE / 4, 64);
}

/* out [TILE, TILE] = sums */
static void round_sums(const float *sums, real *out, idx stride) {
    uint16_t places[TILE];
    for (int i = 0; i < TILE; i++) places[interleaved(i % LANES, i / LANES)] = i;
    __m512i order = _mm512_loadu_si512(places);
    for (idx row = 0; row < TILE; row++) {
        const float *low = sums + row / LANES * (SQUARE / 2) + row % LANES * LANES;
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(low + SQUARE / 4), _mm512_load_ps(low));
        _mm512_storeu_si512(out + row * stride, _mm512_permutexvar_epi16(order, (__m512i)both));
    }
}

/* out [TILE, TILE] is the transpose of sums */
static void round_turned_sums(const float *sums, real *out, idx stride) {
    for (int tile = 0; tile < 4; tile++) {
        pairs line[LANES];
        memcpy(line, sums + tile * SQUARE / 4, sizeof line);
        turn(line);
        for (int i = 0; i < LANES; i++) {
            __m256bh row = _mm512_cvtneps_pbh((__m512)line[i]);
            memcpy(out + interleaved(i, tile % 2) * stride + tile / 2 * LANES, &row, sizeof row);
        }
    }
}

/* `side` columns of transposed_product, where b is at least as wide as a */
static void multiply_panel(idx depth, idx rows, idx side, const real *a, idx a_stride, const real *b,
                           idx b_stride, int is_turned, real *out, idx stride) {
    idx down = rows / TILE, across = side / TILE, all = padded(depth) / TILE;
    idx most = all <= ONCE ? all : STEPS, kept = all <= ONCE ? 0 : SQUARE;
    real *left = scratch(sizeof(real) * most * TILE * (rows + side) +
                         sizeof(float) * (SQUARE + kept * down * across));
    real *right = left + most * TILE * rows;
    float *sums = (float *)(right + most * TILE * side);
    for (idx begin = 0; begin < all; begin += most) {
        idx steps = minimum(most, all - begin);
        for (idx step = 0; step < steps; step++) {
            idx at = (begin + step) * TILE, left_over = depth - at;
            for (idx i = 0; i < down; i++)
                tile_left(left_over, a + at * a_stride + i * TILE, a_stride,
                          left + (i * steps + step) * SQUARE);
            for (idx j = 0; j < across; j++)
                tile_right(left_over, b + at * b_stride + j * TILE, b_stride,
                           right + (j * steps + step) * SQUARE);
        }
        for (idx j = 0; j < across; j++)
            for (idx i = 0; i < down; i++) {
                float *square = sums + (j * down + i) * kept;
                add_steps(steps, left + i * steps * SQUARE, TILE, SQUARE, right + j * steps * SQUARE,
                          begin > 0, square);
                if (begin + steps < all) continue;
                if (is_turned) round_turned_sums(square, out + (j * stride + i) * TILE, stride);
                else round_sums(square, out + (i * stride + j) * TILE, stride);
            }
    }
}

/* out [parts, rows, columns / parts] = transpose of a [depth, rows], times each of the blocks of
 * columns of b [depth, columns]. rows and columns / parts are multiples of TILE; rows > columns only
 * with a single part. Threads divide the wider operand. */
void transposed_product(idx depth, idx rows, idx columns, idx parts, const real *a, const real *b,
                        real *out) {
    int is_turned = rows > columns;
    idx height = minimum(rows, columns), width = maximum(rows, columns), part = width / parts;
    const real *left = is_turned ? b : a, *right = is_turned ? a : b;
    idx threads = omp_get_max_threads(), most = maximum(SUMS / height / TILE * TILE, TILE);
    idx panels = (width + most * threads - 1) / (most * threads) * threads;
    idx panels_per_part = (panels + parts - 1) / parts;
    idx side = padded((part + panels_per_part - 1) / panels_per_part);
#pragma omp parallel
    {
        use_tiles();
#pragma omp for collapse(2) schedule(dynamic)
        for (idx first = 0; first < width; first += part)
            for (idx at = 0; at < part; at += side)
                multiply_panel(depth, height, minimum(side, part - at), left, height,
                               right + first + at, width, is_turned,
                               out + (is_turned ? at * columns : first * height + at),
                               is_turned ? columns : part);
        _tile_release();
    }
}

/* out: the transpose of in [TILE, TILE] in pairs of lines, as two tiles */
static void tile_turned(const real *in, idx stride, real *out) {
    for (int half = 0; half < 2; half++) {
        pairs line[LANES];
        for (int i = 0; i < LANES; i++)
            line[i] = *(const pairs *)(in + (half * LANES + i) * stride);
        turn(line);
        for (int i = 0; i < LANES; i++)
            *(pairs *)(out + half * SQUARE / 2 + i * TILE) = line[i];
    }
}

static inline __m512 wide_line(const real *in) {
    __m256i line = _mm256_loadu_si256((const __m256i *)in);
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(line), 16);
}

/* out [TILE, TILE] = factor * sums + share * in. in may be NULL, or out; its lines are in_stride apart,
 * those of out `stride`. */
static void round_square(float factor, const float *sums, float share, const real *in,
                         idx in_stride, real *out, idx stride) {
    for (idx row = 0; row < TILE; row++) {
        const float *at = sums + row / LANES * (SQUARE / 2) + row % LANES * LANES;
        __m512 low = factor * _mm512_load_ps(at), high = factor * _mm512_load_ps(at + SQUARE / 4);
        const real *more = in + row * in_stride;
        if (in) low += share * wide_line(more), high += share * wide_line(more + LANES);
        _mm512_storeu_si512(out + row * stride, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* A right operand of in [TILE, TILE], as two tiles: pairs of its lines, columns in order */
static void tile_paired(const real *in, idx stride, real *out) {
    for (int i = 0; i < LANES; i++)
        for (int half = 0; half < 2; half++) {
            const real *line = in + 2 * i * stride + half * LANES;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)line));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(line + stride)));
            _mm512_storeu_si512(out + half * SQUARE / 2 + i * TILE,
                                _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

/* Fetch TILE lines, which may be beyond the end of their matrix */
static inline void fetch_lines(const real *in, idx stride) {
    for (idx row = 0; row < TILE; row++) __builtin_prefetch(in + row * stride, 0, 2);
}

/* c [rows, columns] = a b + bias [columns], if any, or c += a b if is_added, for lines of a, lines or
 * columns of b, and lines of c that are contiguous. All sizes are multiples of TILE. Threads divide
 * the columns. */
void product(idx rows, idx columns, idx depth, const real *a, idx a_down, idx a_across, const real *b,
             idx b_down, idx b_across, const real *bias, int is_added, int is_symmetric, real *c,
             idx stride) {
    (void)a_across, (void)is_symmetric;
    idx threads = omp_get_max_threads(), side = padded((columns + threads - 1) / threads);
    idx down = rows / TILE, all = depth / TILE, b_stride = b_across == 1 ? b_down : b_across;
    idx most = all <= ONCE ? all : STEPS, kept = all <= ONCE ? 0 : SQUARE;
#pragma omp parallel
    {
        use_tiles();
        float *sums = scratch(sizeof(float) * (SQUARE + kept * down * (side / TILE)) +
                              sizeof(real) * most * TILE * side);
        real *right = (real *)(sums + SQUARE + kept * down * (side / TILE));
#pragma omp for schedule(dynamic)
        for (idx first = 0; first < columns; first += side) {
            idx across = minimum(side, columns - first) / TILE;
            for (idx begin = 0; begin < all; begin += most) {
                idx steps = minimum(most, all - begin);
                for (idx j = 0; j < across; j++)
                    for (idx step = 0; step < steps; step++) {
                        const real *in = b + (first + j * TILE) * b_across + (begin + step) * TILE * b_down;
                        real *out = right + (j * steps + step) * SQUARE;
                        fetch_lines(in + TILE * b_stride, b_stride);
                        if (b_across == 1) tile_paired(in, b_down, out);
                        else tile_turned(in, b_across, out);
                    }
                for (idx i = 0; i < down; i++)
                    for (idx j = 0; j < across; j++) {
                        float *square = sums + (i * across + j) * kept;
                        add_steps(steps, a + i * TILE * a_down + begin * TILE, a_down, TILE,
                                  right + j * steps * SQUARE, begin > 0, square);
                        if (begin + steps < all) continue;
                        real *to = c + i * TILE * stride + first + j * TILE;
                        const real *more = is_added ? to : bias ? bias + first + j * TILE : NULL;
                        round_square(1.0f, square, 1.0f, more, is_added ? stride : 0, to, stride);
                    }
            }
        }
        _tile_release();
    }
}

/* out = factor * a b + share * in, [down, across] squares of [TILE, TILE] each, where a has `depth`
 * squares per row, and b is a right operand with as many per column. If the result is known to be
 * symmetric, half of it is computed. */
static void multiply_squares(idx down, idx across, idx depth, float factor, const real *a,
                             const real *b, float share, const real *in, int is_symmetric,
                             real *out) {
    float sums[SQUARE] __attribute__((aligned(64)));
    for (idx i = 0; i < down; i++)
        for (idx j = is_symmetric ? i : 0; j < across; j++) {
            idx at = (i * across + j) * SQUARE;
            add_steps(depth, a + i * depth * SQUARE, TILE, SQUARE, b + j * depth * SQUARE, 0, sums);
            round_square(factor, sums, share, in ? in + at : NULL, TILE, out + at, TILE);
            if (is_symmetric && i < j)
                tile_left(TILE, out + at, TILE, out + (j * across + i) * SQUARE);
        }
}

/* Where the TILE values from value `at` of a matrix are, in a copy that is divided into squares */
static inline idx place_in_squares(idx at, idx columns) {
    idx row = at / columns, square = row / TILE * (columns / TILE) + at % columns / TILE;
    return square * SQUARE + row % TILE * TILE;
}

/* Muon's Newton-Schulz iteration (optimizer.py) for matrices of [rows, columns], each by one thread
 * and within its cache. Sizes are multiples of TILE. */
void orthogonalise(idx matrices, idx rows, idx columns, const real *in, real *out, int steps,
                   float first, float third, float fifth) {
    idx down = rows / TILE, across = columns / TILE, size = rows * columns;
#pragma omp parallel
    {
        use_tiles();
        real *x = scratch(sizeof(real) * 2 * (size + rows * rows)), *right = x + size;
        real *gram = right + size, *factor = gram + rows * rows;
#pragma omp for schedule(dynamic)
        for (idx m = 0; m < matrices; m++) {
            const real *from = in + m * size;
            float squares = 0.0f;
            for (idx i = 0; i < size; i++) squares += wide(from[i]) * wide(from[i]);
            float scale = 1.0f / fmaxf(sqrtf(squares), 1e-7f);
            for (idx at = 0; at < size; at += TILE) {
                real *line = x + place_in_squares(at, columns);
                for (int i = 0; i < TILE; i++) line[i] = narrow(scale * wide(from[at + i]));
            }
            for (int step = 0; step < steps; step++) {
                for (idx i = 0; i < down * across; i++)
                    tile_turned(x + i * SQUARE, TILE, right + i * SQUARE);
                multiply_squares(down, down, across, 1.0f, x, right, 0.0f, NULL, 1, gram);
                for (idx i = 0; i < down * down; i++)
                    tile_turned(gram + i * SQUARE, TILE, right + i * SQUARE);
                multiply_squares(down, down, down, fifth, gram, right, third, gram, 1, factor);
                for (idx j = 0; j < across; j++)
                    for (idx i = 0; i < down; i++)
                        tile_paired(x + (i * across + j) * SQUARE, TILE, right + (j * down + i) * SQUARE);
                multiply_squares(down, across, down, 1.0f, factor, right, first, x, 0, x);
            }
            for (idx at = 0; at < size; at += TILE)
                memcpy(out + m * size + at, x + place_in_squares(at, columns), sizeof(real) * TILE);
        }
        _tile_release();
    }
}
#endif

/* Whether the processor has a tile unit, and grants its use, for the products above */
int may_use_tiles(void) {
#if defined(MAY_HAVE_TILES)
    return has_tiles();
#else
    return 0;
#endif
}

#if defined(FLOAT32)
/* Matrix products, for processors whose BLAS leaves much of their rate unused (products.py). Sums
 * of HEIGHT rows and WIDTH columns are held in registers. Both operands are copied into the order in
 * which these sums read them: a panel of WIDTH columns stays in the first level of the cache, a band
 * of rows in the second. (Goto and van de Geijn 2008, "Anatomy of high-performance matrix
 * multiplication".) Every sum has the same order for any number of threads. */
#define HEIGHT 6
#define WIDTH (2 * LANES)
#define DEPTH 256
#define BAND 96
#define SYMMETRIC_BAND 24

/* A matrix in memory: element (row, column) is at [row * down + column * across]. */
typedef struct { float *at; idx down, across; } Operand;

static inline float *element(Operand m, idx row, idx column) {
    return m.at + row * m.down + column * m.across;
}

static inline idx quotient_up(idx count, idx size) { return (count + size - 1) / size; }

/* out [depth, size] = the first `count` columns of m, zero-padded */
static inline __attribute__((always_inline)) void pack(idx depth, idx count, idx size, Operand m,
                                                       float *out) {
    for (idx k = 0; k < depth; k++)
        for (idx i = 0; i < size; i++) out[k * size + i] = i < count ? *element(m, k, i) : 0.0f;
}

/* One panel of b; whole ones are copied line by line, or transposed */
static void pack_panel(idx depth, idx columns, Operand b, float *out) {
    idx k = 0;
    if (columns == WIDTH && b.across == 1)
        for (; k < depth; k++) memcpy(out + k * WIDTH, element(b, k, 0), sizeof(float) * WIDTH);
    else if (columns == WIDTH && b.down == 1)
        for (; k + LANES <= depth; k += LANES)
            transpose_pairs(WIDTH, LANES, (const pair *)element(b, k, 0), b.across,
                            (pair *)(out + k * WIDTH), WIDTH);
    pack(depth - k, columns, WIDTH, (Operand){element(b, k, 0), b.down, b.across}, out + k * WIDTH);
}

/* A band of a, HEIGHT rows at a time */
static void pack_band(idx rows, idx depth, Operand a, float *out) {
    for (idx row = 0; row < rows; row += HEIGHT, out += HEIGHT * depth) {
        Operand turned = {element(a, row, 0), a.across, a.down};
        if (row + HEIGHT <= rows) pack(depth, HEIGHT, HEIGHT, turned, out);
        else pack(depth, rows - row, HEIGHT, turned, out);
    }
}

/* c [HEIGHT, WIDTH] = start + a b; `start` may be c, or one line with a stride of 0, or NULL */
static inline void add_panel(idx depth, const float *a, const float *b, const float *start,
                             idx start_stride, float *c, idx stride) {
    lanes left[HEIGHT] = {0}, right[HEIGHT] = {0};
#pragma GCC unroll 6
    for (int r = 0; r < HEIGHT; r++) __builtin_prefetch(c + r * stride);
    for (idx k = 0; k < depth; k++) {
        const lanes *line = (const lanes *)(b + k * WIDTH);
        lanes first = line[0], second = line[1];
#if defined(__AVX__)
        __asm__("" : "+x"(first), "+x"(second)); /* keep in registers, as in `multiply` */
#endif
#pragma GCC unroll 6
        for (int r = 0; r < HEIGHT; r++) {
            left[r] += a[k * HEIGHT + r] * first;
            right[r] += a[k * HEIGHT + r] * second;
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < HEIGHT; r++) {
        const lanes *from = (const lanes *)(start + r * start_stride);
        if (start) left[r] += from[0], right[r] += from[1];
        lanes *line = (lanes *)(c + r * stride);
        line[0] = left[r];
        line[1] = right[r];
    }
}

/* The same where c has only `height` rows and `width` columns, of which row r keeps its first
 * `skip` + r as they are */
static void add_edge(idx depth, const float *a, const float *b, const float *start,
                     idx start_stride, float *c, idx stride, idx height, idx width, idx skip) {
    float whole[HEIGHT * WIDTH] = {0};
    for (idx r = 0; start && r < height; r++)
        memcpy(whole + r * WIDTH, start + r * start_stride, sizeof(float) * width);
    add_panel(depth, a, b, whole, WIDTH, whole, WIDTH);
    for (idx r = 0; r < height; r++)
        for (idx j = maximum(0, skip + r); j < width; j++) c[r * stride + j] = whole[r * WIDTH + j];
}

/* Copy rows [top, end) of c [size, size], right of the diagonal, to below it */
static void mirror(idx size, idx top, idx end, float *c, idx stride) {
    idx whole_rows = (end - top) / LANES * LANES, whole_columns = (size - end) / LANES * LANES;
    for (idx i = top; i < top + whole_rows; i += LANES)
        for (idx j = end; j < end + whole_columns; j += LANES)
            transpose_pairs(LANES, LANES, (const pair *)(c + i * stride + j), stride,
                            (pair *)(c + j * stride + i), stride);
    for (idx i = top; i < end; i++) {
        idx rest = i < top + whole_rows ? end + whole_columns : end;
        for (idx j = i + 1; j < end; j++) c[j * stride + i] = c[i * stride + j];
        for (idx j = rest; j < size; j++) c[j * stride + i] = c[i * stride + j];
    }
}

/* c [rows, columns] = a b + bias [columns], if any, or c += a b if is_added. If is_symmetric, only
 * elements on or above the diagonal are computed, and mirrored. Lines of c are contiguous. Threads
 * form a grid over c and pack what they need for themselves, so that none waits for another. */
void product(idx rows, idx columns, idx depth, float *a_at, idx a_down, idx a_across, float *b_at,
             idx b_down, idx b_across, const float *bias, int is_added, int is_symmetric, float *c,
             idx stride) {
    Operand a = {a_at, a_down, a_across}, b = {b_at, b_down, b_across};
    idx threads = omp_get_max_threads(), down = threads;
    for (idx n = 1; n < threads && !is_symmetric; n++) /* the grid that packs least */
        if (threads % n == 0 && threads / n * rows + n * columns < threads / down * rows + down * columns)
            down = n;
    idx across = threads / down;
    idx bands = quotient_up(rows, down * (is_symmetric ? SYMMETRIC_BAND : BAND)) * down;
    idx band = quotient_up(quotient_up(rows, bands), HEIGHT) * HEIGHT;
    idx side = quotient_up(quotient_up(columns, across), WIDTH) * WIDTH;
    idx most = quotient_up(depth, quotient_up(depth, DEPTH));
#pragma omp parallel num_threads(threads)
    for (idx me = omp_get_thread_num(); me < threads; me += omp_get_num_threads()) {
        idx left_end = me % across * side, right_end = minimum(columns, left_end + side);
        float lines[BAND * DEPTH];
        float *panels = scratch(sizeof(float) * side * most);
        for (idx begin = 0; begin < depth && left_end < right_end; begin += most) {
            idx some = minimum(most, depth - begin);
            const float *start = is_added || begin ? c : bias;
            idx start_stride = is_added || begin ? stride : 0;
            for (idx j = left_end; j < right_end; j += WIDTH)
                pack_panel(some, minimum(WIDTH, right_end - j),
                           (Operand){element(b, begin, j), b_down, b_across},
                           panels + (j - left_end) * some);
            for (idx top = me / across * band; top < rows; top += down * band) {
                idx end = minimum(rows, top + band);
                pack_band(end - top, some, (Operand){element(a, top, begin), a_down, a_across}, lines);
                for (idx j = is_symmetric ? top / WIDTH * WIDTH : left_end; j < right_end; j += WIDTH)
                    for (idx i = top; i < end; i += HEIGHT) {
                        idx height = minimum(HEIGHT, end - i), width = minimum(WIDTH, right_end - j);
                        idx skip = is_symmetric ? i - j : -HEIGHT;
                        const float *of_a = lines + (i - top) * some;
                        const float *of_b = panels + (j - left_end) * some;
                        const float *from = start ? start + i * start_stride + j : NULL;
                        float *out = c + i * stride + j;
                        if (height == HEIGHT && width == WIDTH && skip <= -HEIGHT)
                            add_panel(some, of_a, of_b, from, start_stride, out, stride);
                        else
                            add_edge(some, of_a, of_b, from, start_stride, out, stride, height,
                                     width, skip);
                    }
                if (is_symmetric && begin + some == depth) mirror(rows, top, end, c, stride);
            }
        }
    }
}
#endif

/* Optimizer updates of tensors with `counts` elements, a block at a time. Gradients are the sum of
 * a float32 and a bfloat16 tensor, either of which may be missing (NULL). */
#define BLOCK 4096

static inline idx blocks_of(idx count) { return (count + BLOCK - 1) / BLOCK; }

static inline void add_gradients(const float *exact, const real *rounded, idx begin, idx some,
                                 float *out) {
    for (idx i = 0; i < some; i++)
        out[i] = (exact ? exact[begin + i] : 0.0f) + (rounded ? wide(rounded[begin + i]) : 0.0f);
}

static inline idx gradient_block(const float *exact, const real *rounded, idx begin, idx count,
                                 float *out) {
    idx some = count - begin < BLOCK ? count - begin : BLOCK;
    add_gradients(exact, rounded, begin, some, out);
    return some;
}

/* sums: of the squared gradients in each block, for all tensors one after another */
void squared_gradients(idx tensors, const int64_t *counts, float *const *exact,
                       real *const *rounded, double *sums) {
#pragma omp parallel firstprivate(sums)
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx block = 0; block < blocks_of(counts[t]); block++) {
            float g[BLOCK], sum = 0.0f;
            idx some = gradient_block(exact[t], rounded[t], block * BLOCK, counts[t], g);
            for (idx i = 0; i < some; i++) sum += g[i] * g[i];
            sums[block] = sum;
        }
        sums += blocks_of(counts[t]);
    }
}

/* Elements that AdamW updates at a time, few enough that five tensors' stay in the first cache */
#define PIECE 256

/* Fetch memory as far ahead of [at, at + bytes) as a core needs to be kept busy: processors do not
 * follow so many tensors by themselves */
static inline void fetch(const void *at, idx bytes) {
    for (idx i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)at + 2048 + i, 1, 2);
}

/* AdamW, with gradients multiplied by `scale`. Updates both moments, and masters = (1 - decay)
 * masters - rate * first / (sqrt(second) + eps); copies, if any, are the rounded masters. */
void adamw(idx tensors, const int64_t *counts, float *const *masters, float *const *first,
           float *const *second, float *const *exact, real *const *rounded, real *const *copies,
           float scale, float rate, float beta1, float beta2, float eps, float decay) {
#pragma omp parallel
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx piece = 0; piece < (counts[t] + PIECE - 1) / PIECE; piece++) {
            idx begin = piece * PIECE, some = minimum(PIECE, counts[t] - begin);
            float g[PIECE];
            add_gradients(exact[t], rounded[t], begin, some, g);
            float *p = masters[t] + begin, *m = first[t] + begin, *v = second[t] + begin;
            fetch(p, 4 * some);
            fetch(m, 4 * some);
            fetch(v, 4 * some);
            if (exact[t]) fetch(exact[t] + begin, 4 * some);
            if (rounded[t]) fetch(rounded[t] + begin, sizeof(real) * some);
#pragma GCC ivdep
            for (idx i = 0; i < some; i++) {
                float one = scale * g[i];
                m[i] = beta1 * m[i] + (1.0f - beta1) * one;
                v[i] = beta2 * v[i] + (1.0f - beta2) * one * one;
                p[i] -= decay * p[i] + rate * m[i] / (sqrtf(v[i]) + eps);
            }
            if (copies[t]) round_line(some, 1.0f, p, copies[t] + begin);
        }
    }
}

/* Muon: update the momentum, first, with the gradients times `scale`; ahead: the rounded Nesterov
 * look-ahead */
void muon_momentum(idx tensors, const int64_t *counts, float *const *first, float *const *exact,
                   real *const *rounded, real *const *ahead, float scale, float momentum) {
#pragma omp parallel
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx block = 0; block < blocks_of(counts[t]); block++) {
            float g[BLOCK];
            idx some = gradient_block(exact[t], rounded[t], block * BLOCK, counts[t], g);
            float *m = first[t] + block * BLOCK;
            for (idx i = 0; i < some; i++) {
                float towards = (1.0f - momentum) * scale * g[i];
                m[i] = momentum * m[i] + towards;
                g[i] = momentum * m[i] + towards;
            }
            round_line(some, 1.0f, g, ahead[t] + block * BLOCK);
        }
    }
}

/* masters = (1 - decay) masters - rate * moves; copies, if any, are the rounded masters */
void muon_move(idx tensors, const int64_t *counts, float *const *masters, real *const *moves,
               real *const *copies, float rate, float decay) {
#pragma omp parallel
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx block = 0; block < blocks_of(counts[t]); block++) {
            idx begin = block * BLOCK;
            idx some = counts[t] - begin < BLOCK ? counts[t] - begin : BLOCK;
            float *p = masters[t] + begin;
            const real *move = moves[t] + begin;
            for (idx i = 0; i < some; i++) p[i] -= decay * p[i] + rate * wide(move[i]);
            if (copies[t]) round_line(some, 1.0f, p, copies[t] + begin);
        }
    }
}

/* Some rows of logits [words, count], each with its bias */
typedef struct { idx first, end, count; real *logits; const real *bias; } Words;

#define WORDS 256

static Words words_of(idx block, idx words, idx count, real *logits, const real *bias) {
    return (Words){block * WORDS, minimum((block + 1) * WORDS, words), count, logits, bias};
}

/* best, place [count]: the largest logit of each column, and its word, the first of ties */
static void largest_logits(Words w, float *best, int32_t *place) {
    for (idx i = 0; i < w.count; i++) best[i] = -INFINITY, place[i] = w.first;
    for (idx word = w.first; word < w.end; word++) {
        const real *x = w.logits + word * w.count;
        float bias = wide(w.bias[word]);
        for (idx i = 0; i < w.count; i++) {
            float logit = wide(x[i]) + bias;
            place[i] = logit > best[i] ? word : place[i];
            best[i] = logit > best[i] ? logit : best[i];
        }
    }
}

/* Logits become e^(logit - largest [count]); sum [count]: their sums */
static void raise_logits(Words w, const float *largest, float *sum) {
    memset(sum, 0, sizeof(float) * w.count);
    for (idx word = w.first; word < w.end; word++)
        for (idx from = 0; from < w.count; from += DRAWN) {
            float e[DRAWN], bias = wide(w.bias[word]);
            real *x = w.logits + word * w.count + from;
            idx some = minimum(DRAWN, w.count - from);
            for (idx i = 0; i < some; i++) {
                e[i] = exponential(wide(x[i]) + bias - largest[from + i]);
                sum[from + i] += e[i];
            }
            round_line(some, 1.0f, e, x);
        }
}

/* logits [words, count], with bias [words], become the gradient of the summed loss, divided column
 * by column by inverse [count]: e^logit relative to the largest, minus their sum at the label,
 * where inverse is the reciprocal of that sum. losses [count] in nats; hits [count]: whether the
 * label has the largest logit, as the first of ties. For a negative label, all three are 0. */
void cross_entropy(idx words, idx count, real *logits, const real *bias, const int64_t *labels,
                   float *inverse, float *losses, uint8_t *hits) {
    idx blocks = (words + WORDS - 1) / WORDS;
    float *found = malloc(sizeof(float) * (blocks + 1) * count), *largest = found + blocks * count;
    int32_t *places = malloc(sizeof(int32_t) * blocks * count);
#pragma omp parallel for schedule(static)
    for (idx block = 0; block < blocks; block++)
        largest_logits(words_of(block, words, count, logits, bias), found + block * count,
                       places + block * count);
    for (idx i = 0; i < count; i++) {
        idx best = i, label = labels[i];
        for (idx at = i; at < blocks * count; at += count)
            if (found[at] > found[best]) best = at;
        hits[i] = places[best] == label;
        largest[i] = label < 0 ? INFINITY : found[best];
        losses[i] = 0.0f;
        if (label >= 0) losses[i] = found[best] - wide(logits[label * count + i]) - wide(bias[label]);
    }
#pragma omp parallel for schedule(static)
    for (idx block = 0; block < blocks; block++)
        raise_logits(words_of(block, words, count, logits, bias), largest, found + block * count);
    for (idx i = 0; i < count; i++) {
        idx label = labels[i];
        float sum = 0.0f;
        for (idx block = 0; block < blocks; block++) sum += found[block * count + i];
        inverse[i] = 0.0f;
        if (label < 0) continue;
        inverse[i] = 1.0f / sum;
        logits[label * count + i] = narrow(exponential(-losses[i]) - sum);
        losses[i] += logf(sum);
    }
    free(found);
    free(places);
}
