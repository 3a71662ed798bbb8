/* GELU, dropout, layer norms, sums and the loss: each reads and writes a tensor once. */

#include "kernels.h"

void *allocated(void *memory, size_t bytes) {
    if (memory || !bytes) return memory;
    fprintf(stderr, "the compiled kernels found no memory for %zu bytes\n", bytes);
    abort();
}

void *scratch(size_t bytes) {
    static _Thread_local void *kept;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(kept);
        size = (bytes + 4095) / 4096 * 4096;
        kept = allocated(aligned_alloc(4096, size), size);
    }
    return kept;
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

/* y = layer norm of x, [width]; bias may be NULL */
static inline __attribute__((always_inline)) void norm_line(idx width, const real *x,
                                                            const real *weight, const real *bias,
                                                            float eps, real *y, float *mean,
                                                            float *deviation) {
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
    *mean = average;
    *deviation = inverse;
}

/* dense = residual + scale * dropout(dense); out is its layer norm; [rows, width] each. mean,
 * deviation (reciprocal): [rows], for the backward pass. */
void residual_norm_forward(idx rows, idx width, real *dense, const real *residual, idx stream,
                           int limit, float scale, const real *weight, const real *bias, float eps,
                           real *out, float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++) {
        real *x = dense + row * width, *y = out + row * width;
        const real *r = residual + row * width;
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
        norm_line(width, x, weight, bias, eps, y, mean + row, deviation + row);
    }
}

/* out = layer norm of in, [rows, width]; bias may be NULL. mean, deviation: [rows]. */
void norm_forward(idx rows, idx width, const real *in, const real *weight, const real *bias,
                  float eps, real *out, float *mean, float *deviation) {
#pragma omp parallel for schedule(static)
    for (idx row = 0; row < rows; row++)
        norm_line(width, in + row * width, weight, bias, eps, out + row * width, mean + row,
                  deviation + row);
}

/* out = gradient of x, [width], given that of its layer norm, plus r if it is not NULL; adds to the
 * gradients of weight and bias.
 *
 * With the normal n = (x - average) * inverse and h = g * weight, the gradient is inverse * (h -
 * mean(h) - n * mean(h * n)): what a shift or a scaling of x would undo is taken out of h. */
static inline __attribute__((always_inline)) void norm_line_backward(
    idx width, const real *g, const real *x, const real *weight, float average, float inverse,
    const real *r, real *out, float *of_weight, float *of_bias) {
    float along = 0.0f, level = 0.0f;
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
        out[i] = narrow((r ? wide(r[i]) : 0.0f) +
                        inverse * (one * wide(weight[i]) - level - normal * along));
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
        for (idx row = rows * thread / threads; row < rows * (thread + 1) / threads; row++)
            norm_line_backward(width, gradient + row * width, in + row * width, weight, mean[row],
                               deviation[row], residual ? residual + row * width : NULL,
                               out + row * width, of_weight, of_bias);
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
    /* Eight by eight values at a time: interleaving 2-, 4- and then 8-byte units of two lines each
     * is a transposition of the square. */
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
            real *r = residual + row * width, *d = dense + row * width;
            norm_line_backward(width, gradient + row * width, sum + row * width, weight, mean[row],
                               deviation[row], NULL, r, of_weight, of_bias);
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

/* Some rows of logits [words, count], each with its bias */
typedef struct {
    idx first, end, count;
    real *logits;
    const real *bias;
} Words;

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
    /* Columns are predictions, so that the product before needs no transpose; a pass over lines
     * takes all columns along. Twice over the logits: the largest of each column, then the powers
     * relative to it. Threads take blocks of words and leave partial results, which are merged in
     * the order of the blocks, so that the number of threads changes nothing. */
    idx blocks = (words + WORDS - 1) / WORDS;
    size_t of_found = sizeof(float) * (blocks + 1) * count,
           of_places = sizeof(int32_t) * blocks * count;
    float *found = allocated(malloc(of_found), of_found), *largest = found + blocks * count;
    int32_t *places = allocated(malloc(of_places), of_places);
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
        if (label >= 0)
            losses[i] = found[best] - wide(logits[label * count + i]) - wide(bias[label]);
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
