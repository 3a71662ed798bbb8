/* The element-wise work of the encoder in bfloat16, each tensor touched once.
 *
 * In:  addresses of contiguous arrays, sizes.
 * Out: written in place of the arrays named in the comments.
 *
 * Every function here has a twin in plain torch, which tests compare it with and which runs where
 * there is no compiler (native_kernels.py). Arithmetic is float32; bfloat16 is what is read and written.
 * Loops are plain so that any compiler can turn them into vector instructions; threads are those
 * that torch already runs (native_kernels.py says how).
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef uint16_t bf16;
typedef int64_t idx;

#define TILE 32

static inline float wide(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* bfloat16 in the order of its values: integers have maxima that vector instructions can find.
 * NaN is the largest. */
static inline int16_t rank(bf16 x) { return (int16_t)(x ^ (((int16_t)x >> 15) & 0x7fff)); }

static inline float unrank(int16_t r) { return wide((bf16)(r ^ ((r >> 15) & 0x7fff))); }

/* round to nearest, ties to even; quiet NaNs stay NaNs */
static inline bf16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Vectors of float32, as long as the processor's */
#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* out = factor * in, [count] */
static inline void round_line(idx count, float factor, const float *in, bf16 *out) {
    idx i = 0;
#if defined(__AVX512BF16__)
    for (; i + 32 <= count; i += 32) {
        lanes low = factor * *(const lanes *)(in + i), high = factor * *(const lanes *)(in + i + 16);
        __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        memcpy(out + i, &both, sizeof both);
    }
#endif
    for (; i < count; i++) out[i] = narrow(factor * in[i]);
}

/* e^x as 2^n 2^r: of 2^r, |r| <= 1/2, the polynomial of least relative error, 1e-7. As much as that
 * is lost where |x| > 2, to the rounding of x / ln 2. */
static inline float exponential(float x) {
    float exponent = x * 1.44269504f;
    exponent = exponent < -126.0f ? -126.0f : exponent; /* so compared, NaN stays NaN */
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

/* What dropout does: value number i of a stream has 16 random bits, a quarter of SplitMix64's output
 * number i / 4 (artifacts/rng.py). It is kept unless their low 15 are below `limit`; limit 0 keeps
 * all. */
#define DRAWN 1024
typedef uint16_t __attribute__((may_alias)) draw;

static inline uint64_t random_word(uint64_t stream, uint64_t number) {
    uint64_t x = stream + (number + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The bits of `count` values from number `first` on, somewhere in `words` [count / 4 + 2] */
static inline const draw *drawn(uint64_t stream, idx first, idx count, uint64_t *words) {
    idx number = first / 4, needed = (first % 4 + count + 3) / 4;
    for (idx i = 0; i < needed; i++) words[i] = random_word(stream, number + i);
    return (const draw *)words + first % 4;
}

static inline int kept(uint16_t bits, int limit) { return (bits & 0x7fff) >= limit; }

/* GELU and its slope. tanh form: x s with s = 1 / (1 + e^-2u), u = c (x + 0.044715 x^3).
 * Exact form: x Phi(x), with Abramowitz & Stegun 7.1.26 for erf, error 1.5e-7. */

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

/* words [count]: what a stream draws */
void random_words(idx count, idx stream, uint64_t *words) {
#pragma omp parallel for schedule(static)
    for (idx i = 0; i < count; i++) words[i] = random_word(stream, i);
}

/* values [count] *= scale where kept, else 0 */
void drop(idx count, bf16 *values, idx stream, int limit, float scale) {
#pragma omp parallel for schedule(static)
    for (idx block = 0; block < (count + DRAWN - 1) / DRAWN; block++) {
        uint64_t words[DRAWN / 4 + 2];
        idx first = block * DRAWN, some = count - first < DRAWN ? count - first : DRAWN;
        const draw *d = drawn(stream, first, some, words);
        bf16 *x = values + first;
        for (idx i = 0; i < some; i++) x[i] = narrow(kept(d[i], limit) ? scale * wide(x[i]) : 0.0f);
    }
}

/* values [count] become gelu(values); slopes: its slope there. */
void gelu_forward(idx count, bf16 *values, bf16 *slopes, int is_tanh) {
#pragma omp parallel for schedule(static)
    for (idx first = 0; first < count; first += DRAWN) {
        float value[DRAWN], slope[DRAWN];
        idx some = count - first < DRAWN ? count - first : DRAWN;
        bf16 *x = values + first;
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
        round_line(some, 1.0f, slope, slopes + first);
    }
}

/* gradient *= slope, [rows, width]; sums [threads, width]: its columns */
void gelu_backward(idx rows, idx width, bf16 *gradient, const bf16 *slope, float *sums,
                   int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *sum = sums + thread * width;
        memset(sum, 0, sizeof(float) * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            bf16 *g = gradient + row * width;
            const bf16 *s = slope + row * width;
            for (idx i = 0; i < width; i++) {
                bf16 rounded = narrow(wide(g[i]) * wide(s[i]));
                g[i] = rounded;
                sum[i] += wide(rounded);
            }
        }
    }
}

/* dense becomes residual + scale * dropout(dense); out is its layer norm; [rows, width] each.
 * mean, deviation: [rows], for the way back. */
void residual_norm_forward(idx rows, idx width, bf16 *dense, const bf16 *residual, idx stream,
                           int limit, float scale, const float *weight, const float *bias,
                           float eps, bf16 *out, float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        bf16 *x = dense + row * width, *y = out + row * width;
        const bf16 *r = residual + row * width;
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
            y[i] = narrow((wide(x[i]) - average) * inverse * weight[i] + bias[i]);
        mean[row] = average;
        deviation[row] = inverse;
    }
}

/* out = layer norm of in, without a shift; [rows, width]. mean, deviation: [rows]. */
void norm_forward(idx rows, idx width, const bf16 *in, const float *weight, float eps, bf16 *out,
                  float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        const bf16 *x = in + row * width;
        bf16 *y = out + row * width;
        float sum = 0.0f, squares = 0.0f;
        for (idx i = 0; i < width; i++) sum += wide(x[i]);
        float average = sum / width;
        for (idx i = 0; i < width; i++) {
            float centred = wide(x[i]) - average;
            squares += centred * centred;
        }
        float inverse = 1.0f / sqrtf(squares / width + eps);
        for (idx i = 0; i < width; i++)
            y[i] = narrow((wide(x[i]) - average) * inverse * weight[i]);
        mean[row] = average;
        deviation[row] = inverse;
    }
}

/* Back through norm_forward; out = residual + the gradient of in. sums [threads, width]: columns of
 * the gradient of weight. out may be gradient or residual. */
void norm_backward(idx rows, idx width, const bf16 *gradient, const bf16 *in, const float *weight,
                   const float *mean, const float *deviation, const bf16 *residual, bf16 *out,
                   float *sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *of_weight = sums + thread * width;
        memset(of_weight, 0, sizeof(float) * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            const bf16 *g = gradient + row * width, *x = in + row * width;
            const bf16 *r = residual + row * width;
            bf16 *o = out + row * width;
            float average = mean[row], inverse = deviation[row], along = 0.0f, level = 0.0f;
            for (idx i = 0; i < width; i++) {
                float weighted = wide(g[i]) * weight[i];
                level += weighted;
                along += weighted * (wide(x[i]) - average);
            }
            along *= inverse / width;
            level /= width;
            for (idx i = 0; i < width; i++) {
                float one = wide(g[i]), normal = (wide(x[i]) - average) * inverse;
                of_weight[i] += one * normal;
                o[i] = narrow(wide(r[i]) + inverse * (one * weight[i] - level - normal * along));
            }
        }
    }
}

/* out [rows, width] = gelu(first half of values) * second half; values [rows, 2 width] become what
 * the gradient of out is multiplied with for that of either half. */
void geglu_forward(idx rows, idx width, bf16 *values, bf16 *out, int is_tanh) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        bf16 *x = values + 2 * row * width, *gate = x + width, *y = out + row * width;
        if (is_tanh) {
            for (idx i = 0; i < width; i++) {
                Gelu gelu = gelu_tanh(wide(x[i]));
                float factor = wide(gate[i]);
                y[i] = narrow(gelu.value * factor);
                x[i] = narrow(gelu.slope * factor);
                gate[i] = narrow(gelu.value);
            }
        } else {
            for (idx i = 0; i < width; i++) {
                Gelu gelu = gelu_erf(wide(x[i]));
                float factor = wide(gate[i]);
                y[i] = narrow(gelu.value * factor);
                x[i] = narrow(gelu.slope * factor);
                gate[i] = narrow(gelu.value);
            }
        }
    }
}

/* out [rows, 2 width]: both halves of factors times gradient [rows, width] */
void geglu_backward(idx rows, idx width, const bf16 *gradient, const bf16 *factors, bf16 *out) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        const bf16 *g = gradient + row * width, *f = factors + 2 * row * width;
        bf16 *o = out + 2 * row * width;
        for (idx i = 0; i < width; i++) {
            o[i] = narrow(wide(g[i]) * wide(f[i]));
            o[width + i] = narrow(wide(g[i]) * wide(f[width + i]));
        }
    }
}

/* in, out [rows, 3, heads, width]: queries and keys rotated by each row's angles, values copied;
 * cosine, sine: [rows, width / 2]. */
void rotate(idx rows, idx heads, idx width, const bf16 *in, const float *cosine, const float *sine,
            bf16 *out) {
    idx half = width / 2, part = heads * width;
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        const float *c = cosine + row * half, *s = sine + row * half;
        for (idx vector = 0; vector < 2 * heads; vector++) {
            const bf16 *x = in + 3 * row * part + vector * width;
            bf16 *y = out + 3 * row * part + vector * width;
            for (idx i = 0; i < half; i++) {
                float first = wide(x[i]), second = wide(x[half + i]);
                y[i] = narrow(first * c[i] - second * s[i]);
                y[half + i] = narrow(second * c[i] + first * s[i]);
            }
        }
        memcpy(out + (3 * row + 2) * part, in + (3 * row + 2) * part, sizeof(bf16) * part);
    }
}

/* [rows <= TILE, width] to [width, stride], column `first` on: each line of the output whole */
static void turn(idx rows, idx width, const bf16 *in, bf16 *out, idx stride) {
    idx column = 0;
#if defined(__SSE2__)
    for (; rows == TILE && column + 8 <= width; column += 8)
        for (idx row = 0; row < TILE; row += 8) {
            const bf16 *p = in + row * width + column;
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
                bf16 *q = out + (column + 2 * i) * stride + row;
                _mm_storeu_si128((__m128i *)q, _mm_unpacklo_epi64(a[i], a[i + 4]));
                _mm_storeu_si128((__m128i *)(q + stride), _mm_unpackhi_epi64(a[i], a[i + 4]));
            }
        }
#endif
    for (; column < width; column++)
        for (idx row = 0; row < rows; row++) out[column * stride + row] = in[row * width + column];
}

/* sums [threads, width]: columns of in [rows, width] */
void column_sums(idx rows, idx width, const bf16 *in, float *sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *sum = sums + thread * width;
        memset(sum, 0, sizeof(float) * width);
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++)
            for (idx i = 0; i < width; i++) sum[i] += wide(in[row * width + i]);
    }
}

/* out [width, rows] is the transpose of in [rows, width] */
void transpose(idx rows, idx width, const bf16 *in, bf16 *out) {
#pragma omp parallel for schedule(static)
    for (idx tile = 0; tile < (rows + TILE - 1) / TILE; tile++) {
        idx first = tile * TILE, count = rows - first < TILE ? rows - first : TILE;
        turn(count, width, in + first * width, out + first, rows);
    }
}

/* Back through residual_norm_forward. gradient, sum: [rows, width].
 * Out: residual [rows, width]; dense [rows, width] and its transpose; sums [threads, 3, width]:
 * columns of the gradients of weight, bias and dense. */
void residual_norm_backward(idx rows, idx width, const bf16 *gradient, const bf16 *sum, idx stream,
                            int limit, float scale, const float *weight, const float *mean,
                            const float *deviation, bf16 *residual, bf16 *dense,
                            bf16 *dense_transposed, float *sums, int threads) {
    idx tiles = (rows + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        float *of_weight = sums + thread * 3 * width;
        float *of_bias = of_weight + width, *of_dense = of_bias + width;
        memset(of_weight, 0, sizeof(float) * 3 * width);
        for (idx tile = tiles * thread / threads; tile < tiles * (thread + 1) / threads; tile++) {
            idx first = tile * TILE, count = rows - first < TILE ? rows - first : TILE;
            for (idx row = first; row < first + count; row++) {
                const bf16 *g = gradient + row * width, *s = sum + row * width;
                bf16 *r = residual + row * width, *d = dense + row * width;
                float average = mean[row], inverse = deviation[row], along = 0.0f, level = 0.0f;
                for (idx i = 0; i < width; i++) {
                    float weighted = wide(g[i]) * weight[i];
                    level += weighted;
                    along += weighted * (wide(s[i]) - average);
                }
                along *= inverse / width;
                level /= width;
                for (idx i = 0; i < width; i++) {
                    float one = wide(g[i]), normal = (wide(s[i]) - average) * inverse;
                    of_weight[i] += one * normal;
                    of_bias[i] += one;
                    r[i] = narrow(inverse * (one * weight[i] - level - normal * along));
                }
                if (!limit) memcpy(d, r, sizeof(bf16) * width);
                for (idx from = 0; limit && from < width; from += DRAWN) {
                    uint64_t words[DRAWN / 4 + 2];
                    idx some = width - from < DRAWN ? width - from : DRAWN;
                    const draw *x = drawn(stream, row * width + from, some, words);
                    for (idx i = 0; i < some; i++)
                        d[from + i] = narrow(kept(x[i], limit) ? scale * wide(r[from + i]) : 0.0f);
                }
                for (idx i = 0; i < width; i++) of_dense[i] += wide(d[i]);
            }
            turn(count, width, dense + first * width, dense_transposed + first, rows);
        }
    }
}

/* How many keys a query sees before its own place and after it */
typedef struct { int before, after; } Sight;

/* The keys [*from, *to) that the query at `place` of a sequence sees; none for padding. */
static inline void visible(int place, int length, Sight sight, int *from, int *to) {
    *from = place > sight.before ? place - sight.before : 0;
    *to = place + sight.after < length ? place + sight.after + 1 : length;
    if (place >= length) *to = *from = 0;
}

/* w = softmax of s over the keys [from, to), 0 elsewhere; both [side], and may be one array */
static inline void softmax_row(const bf16 *s, bf16 *w, idx side, idx from, idx to) {
    int16_t best = INT16_MIN;
    float sum = 0.0f;
    float exponentials[4096];
    float *e = side <= 4096 ? exponentials : malloc(sizeof(float) * side);
    for (idx i = from; i < to; i++) best = rank(s[i]) > best ? rank(s[i]) : best;
    float largest = unrank(best);
    for (idx i = from; i < to; i++) {
        e[i] = exponential(wide(s[i]) - largest);
        sum += e[i];
    }
    float inverse = 1.0f / sum;
    if (from) memset(w, 0, sizeof(bf16) * from);
    round_line(to - from, inverse, e + from, w + from);
    if (to < side) memset(w + to, 0, sizeof(bf16) * (side - to));
    if (e != exponentials) free(e);
}

/* Short rows of scores are worked on together: as many as have DRAWN of them. */
static inline idx rows_together(idx side) { return side < DRAWN ? DRAWN / side : 1; }

/* out [count] = values where kept, from number `first` of the stream on, else 0; may be one array */
static inline void drop_into(const bf16 *values, bf16 *out, idx count, idx stream, idx first,
                             int limit) {
    for (idx from = 0; from < count; from += DRAWN) {
        uint64_t words[DRAWN / 4 + 2];
        idx some = count - from < DRAWN ? count - from : DRAWN;
        const draw *d = drawn(stream, first + from, some, words);
        for (idx i = 0; i < some; i++) out[from + i] = kept(d[i], limit) ? values[from + i] : 0;
    }
}

/* Softmax of scores [sequences, heads, side, side] over the keys each query sees: into weights, and
 * with dropout, unscaled, into scores; where nothing is dropped both may be one array. The first
 * score is number `first` of the stream. */
void softmax_forward(idx sequences, idx heads, idx side, const int64_t *lengths, int before,
                     int after, bf16 *scores, bf16 *weights, idx stream, idx first, int limit) {
    Sight sight = {before, after};
    idx rows = sequences * heads * side, step = rows_together(side);
#pragma omp parallel for schedule(static)
    for (idx begin = 0; begin < rows; begin += step) {
        idx end = begin + step < rows ? begin + step : rows, count = (end - begin) * side;
        bf16 *s = scores + begin * side, *w = weights + begin * side;
        for (idx row = begin; row < end; row++) {
            int from, to;
            visible(row % side, lengths[row / (heads * side)], sight, &from, &to);
            softmax_row(scores + row * side, weights + row * side, side, from, to);
        }
        if (limit)
            drop_into(w, s, count, stream, first + begin * side, limit);
        else if (s != w)
            memcpy(s, w, sizeof(bf16) * count);
    }
}

/* Softmax of scores [heads, rows, side] in their place, each row over the keys [from, to) of its
 * own, which are the same for all heads; the others get 0. */
void softmax_in_ranges(idx heads, idx rows, idx side, const int64_t *from, const int64_t *to,
                       bf16 *scores) {
#pragma omp parallel for schedule(static)
    for (idx at = 0; at < heads * rows; at++) {
        bf16 *s = scores + at * side;
        softmax_row(s, s, side, from[at % rows], to[at % rows]);
    }
}

/* gradient [rows, side], of the dropped weights, becomes that of the scores */
void softmax_backward(idx rows, idx side, bf16 *gradient, const bf16 *weights, idx stream,
                      idx first, int limit) {
    idx step = rows_together(side);
#pragma omp parallel for schedule(static)
    for (idx begin = 0; begin < rows; begin += step) {
        idx end = begin + step < rows ? begin + step : rows;
        bf16 *block = gradient + begin * side;
        if (limit)
            drop_into(block, block, (end - begin) * side, stream, first + begin * side, limit);
        for (idx row = begin; row < end; row++) {
            bf16 *g = gradient + row * side;
            const bf16 *w = weights + row * side;
            float along = 0.0f;
            for (idx i = 0; i < side; i++) along += wide(g[i]) * wide(w[i]);
            for (idx i = 0; i < side; i++) g[i] = narrow(wide(w[i]) * (wide(g[i]) - along));
        }
    }
}

/* Attention of sequences so short that one head's numbers stay in the second cache. Operands of a
 * product are bfloat16, sums and softmax float32, and probabilities are computed again on the way
 * back. Lines are SHORT apart; sizes are filled up with zeros to multiples of TILE. */
#define SHORT 128
#define ROWS 4
typedef uint32_t pair __attribute__((may_alias));
typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef bf16 Lines[SHORT * SHORT];     /* a left operand, [rows, depth] */
typedef pair Pairs[SHORT / 2 * SHORT]; /* a right one, [depth / 2, columns]: two of its lines in one */
typedef float Matrix[SHORT * SHORT];

static inline idx whole(idx count) { return (count + TILE - 1) / TILE * TILE; }

/* sum += of each column the product of a pair and a pair */
static inline lanes add_products(lanes sum, pair x, pairs line) {
#if defined(__AVX512BF16__)
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)line);
#else
    return sum + wide(x) * (lanes)(line << 16) + wide(x >> 16) * (lanes)(line & 0xffff0000);
#endif
}

#if defined(__AMX_BF16__)
/* Whether the system lets this process use the matrix unit, which must be asked for */
static int has_tiles(void) {
    const int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static int answer = -1;
    if (answer < 0) answer = !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return answer;
}

/* Eight tiles of 16 lines of 64 bytes: four sums, two pieces of a, two of b */
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

static void multiply_tiles(idx rows, idx columns, idx depth, const bf16 *a, const pair *b,
                           float *c) {
    for (idx i = 0; i < rows; i += TILE)
        for (idx j = 0; j < columns; j += TILE) {
            const bf16 *left = a + i * SHORT;
            float *out = c + i * SHORT + j;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (idx k = 0; k < depth; k += TILE) {
                const pair *right = b + k / 2 * SHORT + j;
                _tile_loadd(4, left + k, 2 * SHORT);
                _tile_loadd(5, left + 16 * SHORT + k, 2 * SHORT);
                _tile_loadd(6, right, 4 * SHORT);
                _tile_loadd(7, right + 16, 4 * SHORT);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, out, 4 * SHORT);
            _tile_stored(1, out + 16, 4 * SHORT);
            _tile_stored(2, out + 16 * SHORT, 4 * SHORT);
            _tile_stored(3, out + 16 * SHORT + 16, 4 * SHORT);
        }
}
#endif

/* c [rows, columns] = a b, in whole tiles */
static void multiply(idx rows, idx columns, idx depth, const bf16 *a, const pair *b, float *c) {
    rows = whole(rows), columns = whole(columns), depth = whole(depth);
#if defined(__AMX_BF16__)
    if (has_tiles()) {
        multiply_tiles(rows, columns, depth, a, b, c);
        return;
    }
#endif
    for (idx i = 0; i < rows; i += ROWS)
        for (idx j = 0; j < columns; j += 2 * LANES) {
            lanes left[ROWS] = {0}, right[ROWS] = {0};
            for (idx k = 0; k < depth / 2; k++) {
                const pairs *line = (const pairs *)(b + k * SHORT + j);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    pair x = ((const pair *)(a + (i + r) * SHORT))[k];
                    left[r] = add_products(left[r], x, line[0]);
                    right[r] = add_products(right[r], x, line[1]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                lanes *line = (lanes *)(c + (i + r) * SHORT + j);
                line[0] = left[r];
                line[1] = right[r];
            }
        }
}

/* out [rows, width] = in, whose lines are `stride` apart */
static void copy_lines(idx rows, idx width, const bf16 *in, idx stride, bf16 *out) {
    for (idx row = 0; row < whole(rows); row++)
        for (idx i = 0; i < width; i += TILE) {
            bf16 *to = out + row * SHORT + i;
            const bf16 *from = in + row * stride + i;
            if (row < rows && i + TILE <= width) {
                memcpy(to, from, sizeof(bf16) * TILE);
            } else {
                memset(to, 0, sizeof(bf16) * TILE);
                if (row < rows) memcpy(to, from, sizeof(bf16) * (width - i));
            }
        }
}

/* The lines [rows, width] as a right operand */
static void pair_lines(idx rows, idx width, const bf16 *in, pair *out) {
    for (idx row = 0; row < whole(rows); row += 2)
        for (idx i = 0; i < whole(width); i++)
            out[row / 2 * SHORT + i] = in[row * SHORT + i] | (pair)in[(row + 1) * SHORT + i] << 16;
}

/* out [columns, rows] is the transpose of in [rows, columns], in multiples of LANES */
static void turn_pairs(idx rows, idx columns, const pair *in, idx stride, pair *out,
                       idx out_stride) {
    for (idx row = 0; row < rows; row += LANES)
        for (idx column = 0; column < columns; column += LANES) {
            pairs line[LANES];
            for (int i = 0; i < LANES; i++)
                line[i] = *(const pairs *)(in + (row + i) * stride + column);
            /* Numbers of line and column change places bit by bit. */
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
            for (int i = 0; i < LANES; i++)
                *(pairs *)(out + (column + i) * out_stride + row) = line[i];
        }
}

/* The transpose of the lines [rows, width] as a right operand */
static void pair_columns(idx rows, idx width, const bf16 *in, pair *out) {
    turn_pairs(whole(rows), whole(width) / 2, (const pair *)in, SHORT / 2, out, SHORT);
}

/* Lines [width, rows] of pairs of lines [rows, width] */
static void turn_lines(idx rows, idx width, const pair *in, bf16 *out) {
    turn_pairs(whole(rows) / 2, whole(width), in, SHORT, (pair *)out, SHORT / 2);
}

/* out [rows, width] = factor * in; lines of out are `stride` apart */
static void round_off(idx rows, idx width, float factor, const float *in, bf16 *out, idx stride) {
    for (idx row = 0; row < rows; row++) round_line(width, factor, in + row * SHORT, out + row * stride);
}

/* float32 in the order of its values, as `rank` of bfloat16 */
static inline int32_t order(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

static inline float unorder(int32_t ordered) {
    int32_t bits = ordered ^ ((ordered >> 31) & 0x7fffffff);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* scores [length, length] become e^(factor * them), 0 where a query does not see a key, in units of
 * their largest; inverse [length]: one over their sums; weights: the softmax as lines, 0 unless
 * kept: numbers of the stream from `first` on in lines of `side` */
static void softmax_short(int length, int side, Sight sight, float factor, float *scores,
                          float *inverse, bf16 *weights, idx stream, idx first, int limit) {
    int padded = whole(length);
    for (int row = 0; row < length; row++) {
        float *s = scores + row * SHORT, sum = 0.0f;
        bf16 *w = weights + row * SHORT;
        int from, to;
        visible(row, length, sight, &from, &to);
        int32_t best = INT32_MIN;
        for (int i = from; i < to; i++) best = order(s[i]) > best ? order(s[i]) : best;
        float largest = unorder(best);
        for (int i = 0; i < padded; i++) {
            float e = exponential(factor * (s[i] - largest));
            s[i] = i >= from && i < to ? e : 0.0f; /* by its place: NaN must be seen */
            sum += s[i];
        }
        inverse[row] = 1.0f / sum;
        round_line(padded, inverse[row], s, w);
        if (limit) drop_into(w, w, padded, stream, first + row * side, limit);
    }
    memset(weights + length * SHORT, 0, sizeof(bf16) * SHORT * (padded - length));
}

/* gradient [length, length], of `scale` times the weights kept, becomes that of the scores, as lines */
static void softmax_short_backward(int length, float scale, float factor, const float *scores,
                                   const float *inverse, float *gradient, bf16 *weights) {
    int padded = whole(length);
    for (int row = 0; row < length; row++) {
        const float *s = scores + row * SHORT;
        bf16 *w = weights + row * SHORT;
        float *g = gradient + row * SHORT, along = 0.0f;
        for (int i = 0; i < padded; i++) {
            g[i] *= scale * wide(w[i]);
            along += g[i];
        }
        along *= inverse[row];
        for (int i = 0; i < padded; i++) g[i] -= s[i] * along;
        round_line(padded, factor, g, w);
    }
}

typedef struct {
    Lines query, key, value, gradient, weights, turned;
    Pairs right;
    Matrix scores, result;
    float inverse[SHORT];
} Workspace;

/* What one thread works with, until it gives it back */
static Workspace *take_workspace(void) {
#if defined(__AMX_BF16__)
    if (has_tiles()) use_tiles();
#endif
    return aligned_alloc(64, sizeof(Workspace));
}

static void give_back(Workspace *workspace) {
#if defined(__AMX_BF16__)
    if (has_tiles()) _tile_release();
#endif
    free(workspace);
}

/* parts [tokens, 3, heads, width <= SHORT]: query, key and value. Sequence number s has its
 * lengths[s] <= side <= SHORT tokens from starts[s] on, each of which sees `before` and `after`, and numbers of the stream like a line of
 * scores [sequences, heads, side, side] from number `first` on. out [tokens, heads, width]. */
void short_attention_forward(idx sequences, idx heads, idx width, idx side, const int64_t *starts,
                             const int64_t *lengths, int before, int after, const bf16 *parts,
                             idx stream, idx first, int limit, float scale, bf16 *out) {
    Sight sight = {before, after};
    idx line = heads * width;
    float factor = 1.0f / sqrtf(width);
#pragma omp parallel
    {
        Workspace *w = take_workspace();
#pragma omp for schedule(dynamic)
        for (idx at = 0; at < sequences * heads; at++) {
            idx length = lengths[at / heads], token = starts[at / heads], head = at % heads;
            const bf16 *in = parts + 3 * token * line + head * width;
            copy_lines(length, width, in, 3 * line, w->query);
            copy_lines(length, width, in + line, 3 * line, w->key);
            copy_lines(length, width, in + 2 * line, 3 * line, w->value);
            pair_columns(length, width, w->key, w->right);
            multiply(length, length, width, w->query, w->right, w->scores);
            softmax_short(length, side, sight, factor, w->scores, w->inverse, w->weights, stream,
                          first + at * side * side, limit);
            pair_lines(length, width, w->value, w->right);
            multiply(length, width, length, w->weights, w->right, w->result);
            round_off(length, width, scale, w->result, out + token * line + head * width, line);
        }
        give_back(w);
    }
}

/* The gradient of parts [tokens, 3, heads, width] from that of short_attention_forward's output */
void short_attention_backward(idx sequences, idx heads, idx width, idx side, const int64_t *starts,
                              const int64_t *lengths, int before, int after, const bf16 *parts,
                              idx stream, idx first, int limit, float scale, const bf16 *gradient,
                              bf16 *out) {
    Sight sight = {before, after};
    idx line = heads * width;
    float factor = 1.0f / sqrtf(width);
#pragma omp parallel
    {
        Workspace *w = take_workspace();
#pragma omp for schedule(dynamic)
        for (idx at = 0; at < sequences * heads; at++) {
            idx length = lengths[at / heads], token = starts[at / heads], head = at % heads;
            const bf16 *in = parts + 3 * token * line + head * width;
            bf16 *into = out + 3 * token * line + head * width;
            copy_lines(length, width, in, 3 * line, w->query);
            copy_lines(length, width, in + line, 3 * line, w->key);
            copy_lines(length, width, in + 2 * line, 3 * line, w->value);
            copy_lines(length, width, gradient + token * line + head * width, line, w->gradient);
            pair_columns(length, width, w->key, w->right);
            multiply(length, length, width, w->query, w->right, w->scores);
            softmax_short(length, side, sight, factor, w->scores, w->inverse, w->weights, stream,
                          first + at * side * side, limit);

            pair_lines(length, length, w->weights, w->right);
            turn_lines(length, length, w->right, w->turned);
            pair_lines(length, width, w->gradient, w->right);
            multiply(length, width, length, w->turned, w->right, w->result);
            round_off(length, width, scale, w->result, into + 2 * line, 3 * line);

            pair_columns(length, width, w->value, w->right);
            multiply(length, length, width, w->gradient, w->right, w->result);
            softmax_short_backward(length, scale, factor, w->scores, w->inverse, w->result,
                                   w->weights);
            pair_lines(length, width, w->key, w->right);
            multiply(length, width, length, w->weights, w->right, w->result);
            round_off(length, width, 1.0f, w->result, into, 3 * line);
            pair_lines(length, length, w->weights, w->right);
            turn_lines(length, length, w->right, w->turned);
            pair_lines(length, width, w->query, w->right);
            multiply(length, width, length, w->turned, w->right, w->result);
            round_off(length, width, 1.0f, w->result, into + line, 3 * line);
        }
        give_back(w);
    }
}

/* What an update does to tensors of `counts` numbers, a block of them at a time. Their gradients are
 * the sum of one in float32 and one in bfloat16, either of which may be missing (NULL). */
#define BLOCK 4096

static inline idx blocks_of(idx count) { return (count + BLOCK - 1) / BLOCK; }

static inline idx gradient_block(const float *exact, const bf16 *rounded, idx begin, idx count,
                                 float *out) {
    idx some = count - begin < BLOCK ? count - begin : BLOCK;
    for (idx i = 0; i < some; i++)
        out[i] = (exact ? exact[begin + i] : 0.0f) + (rounded ? wide(rounded[begin + i]) : 0.0f);
    return some;
}

/* sums: of each block's squared gradients, all tensors' one after another */
void squared_gradients(idx tensors, const int64_t *counts, float *const *exact,
                       bf16 *const *rounded, double *sums) {
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

/* AdamW, with the gradients times `scale`: both moments; masters = (1 - decay) masters - rate *
 * first / (sqrt(second) + eps); copies: these rounded, where there are any. */
void adamw(idx tensors, const int64_t *counts, float *const *masters, float *const *first,
           float *const *second, float *const *exact, bf16 *const *rounded, bf16 *const *copies,
           float scale, float rate, float beta1, float beta2, float eps, float decay) {
#pragma omp parallel
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx block = 0; block < blocks_of(counts[t]); block++) {
            float g[BLOCK];
            idx some = gradient_block(exact[t], rounded[t], block * BLOCK, counts[t], g);
            float *p = masters[t] + block * BLOCK;
            float *m = first[t] + block * BLOCK, *v = second[t] + block * BLOCK;
#pragma GCC ivdep
            for (idx i = 0; i < some; i++) {
                float one = scale * g[i];
                m[i] = beta1 * m[i] + (1.0f - beta1) * one;
                v[i] = beta2 * v[i] + (1.0f - beta2) * one * one;
                p[i] -= decay * p[i] + rate * m[i] / (sqrtf(v[i]) + eps);
            }
            if (copies[t]) round_line(some, 1.0f, p, copies[t] + block * BLOCK);
        }
    }
}

/* Muon's momentum, first, moved towards the gradients times `scale`; ahead: as the next step would
 * move it, rounded */
void muon_momentum(idx tensors, const int64_t *counts, float *const *first, float *const *exact,
                   bf16 *const *rounded, bf16 *const *ahead, float scale, float momentum) {
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

/* masters = (1 - decay) masters - rate * moves; copies: these rounded, where there are any */
void muon_move(idx tensors, const int64_t *counts, float *const *masters, bf16 *const *moves,
               bf16 *const *copies, float rate, float decay) {
#pragma omp parallel
    for (idx t = 0; t < tensors; t++) {
#pragma omp for schedule(static) nowait
        for (idx block = 0; block < blocks_of(counts[t]); block++) {
            idx begin = block * BLOCK;
            idx some = counts[t] - begin < BLOCK ? counts[t] - begin : BLOCK;
            float *p = masters[t] + begin;
            const bf16 *move = moves[t] + begin;
            for (idx i = 0; i < some; i++) p[i] -= decay * p[i] + rate * wide(move[i]);
            if (copies[t]) round_line(some, 1.0f, p, copies[t] + begin);
        }
    }
}

/* logits [rows, stride], width of them in use, become the gradient of the summed loss divided by
 * inverse [rows], the others 0: e^logit in units of the largest, at the label less all of these;
 * inverse is one over that sum. losses [rows] in nats; hits [rows]: whether the label's logit is the
 * largest, of equal ones the first. A negative label asks nothing. */
void cross_entropy(idx rows, idx width, idx stride, bf16 *logits, const int64_t *labels,
                   float *inverse, float *losses, uint8_t *hits) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        bf16 *x = logits + row * stride;
        idx label = labels[row];
        memset(x + width, 0, sizeof(bf16) * (stride - width));
        inverse[row] = losses[row] = hits[row] = 0;
        if (label < 0) {
            memset(x, 0, sizeof(bf16) * width);
            continue;
        }
        int16_t best = INT16_MIN;
        for (idx i = 0; i < width; i++) best = rank(x[i]) > best ? rank(x[i]) : best;
        float largest = unrank(best), sum = 0.0f, wanted = wide(x[label]);
        hits[row] = wanted == largest;
        for (idx i = 0; hits[row] && i < label; i++)
            if (wide(x[i]) == largest) hits[row] = 0;
        for (idx from = 0; from < width; from += DRAWN) {
            float e[DRAWN];
            idx some = width - from < DRAWN ? width - from : DRAWN;
            for (idx i = 0; i < some; i++) {
                e[i] = exponential(wide(x[from + i]) - largest);
                sum += e[i];
            }
            round_line(some, 1.0f, e, x + from);
        }
        losses[row] = logf(sum) + largest - wanted;
        inverse[row] = 1.0f / sum;
        x[label] = narrow(exponential(wanted - largest) - sum);
    }
}
