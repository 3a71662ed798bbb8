/* All layers of a BERT encoder in one call, for inference: weights are in the order in which
 * products read them, once and for all, and nothing is kept for a backward pass. */

#include "kernels.h"

/* A weight is cut into panels of WIDTH columns; of one, HEIGHT rows of the input are multiplied at
 * a time, with their sums in registers. Lines of a panel are units of 32 bits: one float32, two
 * bfloat16 or four int8 of consecutive lines. A task is some panels by at most BAND rows, which
 * stay in the second level of the cache. */
#define WIDTH (2 * LANES)
#if defined(__AVX512F__)
#define HEIGHT 12
#else
#define HEIGHT 6
#endif
#define BAND 96
/* Tasks per thread: enough that one that is disturbed does not keep the others waiting */
#define SHARES 4
#define QUAD 4

/* A dense layer with a weight of [depth, columns] */
typedef struct {
    const pair *panels; /* [columns / WIDTH, depth / values per unit, WIDTH] */
    const float *bias, *scales, *sums; /* [columns]; the last two only with int8 */
} Dense;

typedef struct {
    const float *weight, *bias;
} Norm;

/* What Python passes as addresses, layer by layer */
typedef struct {
    Dense parts, context;
    Norm attention_norm;
    Dense inner, outer;
    Norm norm;
} Layer;

/* The input of a dense layer, in units of 32 bits; with int8, value = lowest + scale * byte */
typedef struct {
    const pair *units;
    idx stride;
    const float *scales, *lowest;
} Lines;

/* panels: of a weight whose element (line, column) is at [line * down + column * across] */
void pack_weight(idx depth, idx columns, const real *weight, idx down, idx across, pair *panels) {
    real *out = (real *)panels;
#pragma omp parallel for schedule(static)
    for (idx j = 0; j < columns; j++)
        for (idx k = 0; k < depth; k++)
            out[j / WIDTH * WIDTH * depth + (k / PAIR * WIDTH + j % WIDTH) * PAIR + k % PAIR] =
                weight[k * down + j * across];
}

/* The same in int8: every column with a scale of its own; sums of the columns as they will be */
void quantise_weight(idx depth, idx columns, const real *weight, idx down, idx across, pair *panels,
                     float *scales, float *sums) {
    int8_t *out = (int8_t *)panels;
#pragma omp parallel for schedule(static)
    for (idx j = 0; j < columns; j++) {
        float most = 0.0f;
        int32_t sum = 0;
        for (idx k = 0; k < depth; k++) {
            float size = fabsf(wide(weight[k * down + j * across]));
            most = size > most || size != size ? size : most; /* a NaN stays */
        }
        float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
        for (idx k = 0; k < depth; k++) {
            int8_t value = (int8_t)rintf(inverse * wide(weight[k * down + j * across]));
            out[j / WIDTH * WIDTH * depth + (k / QUAD * WIDTH + j % WIDTH) * QUAD + k % QUAD] =
                value;
            sum += value;
        }
        scales[j] = scale;
        sums[j] = scale * (float)sum;
    }
}

/* sum += product of four unsigned bytes with the four signed ones in each column */
static inline integers add_bytes(integers sum, pair x, pairs line) {
#if defined(__AVX512VNNI__)
    return (integers)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32((int)x), (__m512i)line);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (integers)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32((int)x),
                                             (__m256i)line);
#elif defined(__AVX512BW__)
    /* Two products of 16 bits and their sum at a time, first those of even bytes */
    __m512i bytes = _mm512_set1_epi32((int)x), all = (__m512i)line;
    sum += (integers)_mm512_madd_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(255)),
                                       _mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8));
    return sum + (integers)_mm512_madd_epi16(_mm512_srli_epi16(bytes, 8), _mm512_srai_epi16(all, 8));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i bytes = _mm256_set1_epi32((int)x), all = (__m256i)line;
    sum += (integers)_mm256_madd_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(255)),
                                       _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8));
    return sum + (integers)_mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), _mm256_srai_epi16(all, 8));
#else
    integers signs = (integers)line;
    sum += (int)(x & 255) * ((signs << 24) >> 24);
    sum += (int)(x >> 8 & 255) * ((signs << 16) >> 24);
    sum += (int)(x >> 16 & 255) * ((signs << 8) >> 24);
    return sum + (int)(x >> 24) * (signs >> 24);
#endif
}

/* Of a single sentence, reading the weights is most of the time: fetch what is multiplied later.
 * 48 lines ahead was faster on Zen 5 than 20; the next panel follows this one. */
static inline void fetch_ahead(const pair *line) {
    __builtin_prefetch(line + 48 * WIDTH);
    if (LANES == 16) __builtin_prefetch(line + 48 * WIDTH + LANES);
}

/* out [height, WIDTH] = rows of `in` times a panel */
static inline __attribute__((always_inline)) void multiply_floats(int height, idx steps,
                                                                  const pair *in, idx stride,
                                                                  const pair *panel, float *out) {
    lanes left[HEIGHT] = {0}, right[HEIGHT] = {0};
    for (idx k = 0; k < steps; k++) {
        fetch_ahead(panel + k * WIDTH);
        pairs first = *(const pairs *)(panel + k * WIDTH),
              second = *(const pairs *)(panel + k * WIDTH + LANES);
#if defined(__AVX__)
        __asm__("" : "+x"(first), "+x"(second)); /* keep in registers, as in `multiply` */
#endif
#pragma GCC unroll 12
        for (int r = 0; r < height; r++) {
            left[r] = add_products(left[r], in[r * stride + k], first);
            right[r] = add_products(right[r], in[r * stride + k], second);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < height; r++) {
        *(lanes *)(out + r * WIDTH) = left[r];
        *(lanes *)(out + r * WIDTH + LANES) = right[r];
    }
}

/* The same with int8, not yet scaled */
static inline __attribute__((always_inline)) void multiply_bytes(int height, idx steps,
                                                                 const pair *in, idx stride,
                                                                 const pair *panel, float *out) {
    integers left[HEIGHT] = {0}, right[HEIGHT] = {0};
    for (idx k = 0; k < steps; k++) {
        fetch_ahead(panel + k * WIDTH);
        pairs first = *(const pairs *)(panel + k * WIDTH),
              second = *(const pairs *)(panel + k * WIDTH + LANES);
#if defined(__AVX__)
        __asm__("" : "+x"(first), "+x"(second));
#endif
#pragma GCC unroll 12
        for (int r = 0; r < height; r++) {
            left[r] = add_bytes(left[r], in[r * stride + k], first);
            right[r] = add_bytes(right[r], in[r * stride + k], second);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < height; r++) {
        *(lanes *)(out + r * WIDTH) = __builtin_convertvector(left[r], lanes);
        *(lanes *)(out + r * WIDTH + LANES) = __builtin_convertvector(right[r], lanes);
    }
}

/* A loop for every number of rows, so that none is computed in vain */
#define OF_HEIGHT(n)                                              \
    case n:                                                       \
        if (is_int8)                                              \
            multiply_bytes(n, steps, in, stride, panel, out);     \
        else                                                      \
            multiply_floats(n, steps, in, stride, panel, out);    \
        break;

static void multiply_rows(idx height, int is_int8, idx steps, const pair *in, idx stride,
                          const pair *panel, float *out) {
    switch (height) {
        OF_HEIGHT(1)
        OF_HEIGHT(2)
        OF_HEIGHT(3)
        OF_HEIGHT(4)
        OF_HEIGHT(5)
        OF_HEIGHT(6)
#if HEIGHT > 6
        OF_HEIGHT(7)
        OF_HEIGHT(8)
        OF_HEIGHT(9)
        OF_HEIGHT(10)
        OF_HEIGHT(11)
        OF_HEIGHT(12)
#endif
    }
}

enum { LINEAR, ERF, TANH };

/* out [count, WIDTH], its lines `stride` apart, = activation(sums, scaled if int8, + bias) */
static void finish(idx count, idx row, idx column, const Dense *d, const Lines *in, int gelu,
                   const float *sums, real *out, idx stride) {
    const float *bias = d->bias + column;
    for (idx r = 0; r < count; r++) {
        float line[WIDTH];
        const float *sum = sums + r * WIDTH;
        if (d->scales) {
            float scale = in->scales[row + r], lowest = in->lowest[row + r];
            for (idx j = 0; j < WIDTH; j++)
                line[j] = scale * d->scales[column + j] * sum[j] + lowest * d->sums[column + j] +
                          bias[j];
        } else
            for (idx j = 0; j < WIDTH; j++) line[j] = sum[j] + bias[j];
        if (gelu == ERF)
            for (idx j = 0; j < WIDTH; j++) line[j] = gelu_erf(line[j]).value;
        if (gelu == TANH)
            for (idx j = 0; j < WIDTH; j++) line[j] = gelu_tanh(line[j]).value;
        round_line(WIDTH, 1.0f, line, out + r * stride);
    }
}

/* out [tokens, columns] = activation(in times weight + bias). Like the functions below, this is
 * called by all threads of a parallel region, and ends when all of them have ended. */
static void apply_dense(const Dense *d, idx tokens, idx depth, idx columns, Lines in, int gelu,
                        real *out) {
    idx steps = depth / (d->scales ? QUAD : PAIR), panels = columns / WIDTH;
    idx bands = quotient_up(tokens, BAND), threads = omp_get_num_threads();
    idx shares = minimum(panels, quotient_up(SHARES * threads, bands));
#pragma omp for schedule(dynamic)
    for (idx task = 0; task < shares * bands; task++) {
        idx share = task / bands;
        idx first = panels * share / shares, end = panels * (share + 1) / shares;
        idx top = task % bands * BAND, bottom = minimum(top + BAND, tokens);
        for (idx panel = first; panel < end; panel++)
            for (idx row = top; row < bottom; row += HEIGHT) {
                float sums[HEIGHT * WIDTH];
                idx count = minimum(HEIGHT, bottom - row);
                multiply_rows(count, d->scales != NULL, steps, in.units + row * in.stride,
                              in.stride, d->panels + panel * steps * WIDTH, sums);
                finish(count, row, panel * WIDTH, d, &in, gelu, sums,
                       out + row * columns + panel * WIDTH, columns);
            }
    }
}

/* out = layer norm of in + residual, [tokens, width]; out may be residual. Overwrites in. */
static void add_and_norm(idx tokens, idx width, real *in, const real *residual, const Norm *norm,
                         float eps, real *out) {
#pragma omp for schedule(static)
    for (idx row = 0; row < tokens; row++) {
        real *x = in + row * width, *y = out + row * width;
        const real *r = residual + row * width;
        float sum = 0.0f, squares = 0.0f;
        for (idx i = 0; i < width; i++) {
            x[i] = narrow(wide(x[i]) + wide(r[i]));
            sum += wide(x[i]);
        }
        float average = sum / width;
        for (idx i = 0; i < width; i++) {
            float centred = wide(x[i]) - average;
            squares += centred * centred;
        }
        float inverse = 1.0f / sqrtf(squares / width + eps);
        for (idx i = 0; i < width; i++)
            y[i] = narrow((wide(x[i]) - average) * inverse * norm->weight[i] + norm->bias[i]);
    }
}

/* Memory for the input of a dense layer in int8 */
typedef struct {
    uint8_t *bytes;
    float *scales, *lowest;
} Bytes;

typedef struct {
    float least, scale;
} Range;

/* Of values whose maxima, and maxima of their opposites, are in lanes */
static inline Range range_of(lanes most, lanes opposite) {
    float high = most[0], low = opposite[0];
    for (int i = 1; i < LANES; i++) {
        high = most[i] > high ? most[i] : high;
        low = opposite[i] > low ? opposite[i] : low;
    }
    return (Range){-low, (high + low) / 255.0f};
}

static inline int any(integers flags) {
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= flags[i];
    return found;
}

/* in [tokens, width] as the input of a dense layer: as it is, or every token in int8, with a scale
 * and an offset of its own */
static Lines input_of(idx tokens, idx width, const real *in, int is_int8, Bytes room) {
    if (!is_int8) return (Lines){(const pair *)in, width / PAIR, NULL, NULL};
#pragma omp for schedule(static)
    for (idx row = 0; row < tokens; row++) {
        const real *x = in + row * width;
        uint8_t *out = room.bytes + row * width;
        /* Two of each, so that one comparison need not wait for the last; a maximum forgets a NaN. */
        lanes most[2] = {wide_lanes(x), wide_lanes(x)}, opposite[2] = {-most[0], -most[0]};
        integers is_nan = {0};
        for (idx i = 0; i < width; i += 2 * LANES)
            for (int half = 0; half < 2; half++) {
                lanes value = wide_lanes(x + i + half * LANES);
                most[half] = larger(most[half], value);
                opposite[half] = larger(opposite[half], -value);
                is_nan |= (integers)(value != value);
            }
        Range range = range_of(larger(most[0], most[1]), larger(opposite[0], opposite[1]));
        float inverse = range.scale > 0.0f ? 1.0f / range.scale : 0.0f;
        for (idx i = 0; i < width; i += LANES) {
            lanes place = (wide_lanes(x + i) - range.least) * inverse + 0.5f;
            *(octets *)(out + i) =
                __builtin_convertvector(__builtin_convertvector(place, integers), octets);
        }
        room.scales[row] = any(is_nan) ? NAN : range.scale; /* it must remain visible */
        room.lowest[row] = range.least;
    }
    return (Lines){(const pair *)room.bytes, width / QUAD, room.scales, room.lowest};
}

/* Parts of the working memory of `encode`, each aligned to a line of the cache */
typedef struct {
    real *wide, *context, *dense;
    float *log_sums;
    Bytes bytes;
    idx size;
} Room;

static Room divide_room(idx tokens, idx width, idx inner, idx heads, char *at) {
    idx widest = maximum(3 * width, inner), size = sizeof(real);
    idx counts[] = {tokens * widest * size, tokens * width * size, tokens * width * size,
                    tokens * heads * 4,     tokens * widest,       tokens * 4,
                    tokens * 4};
    char *parts[7];
    idx used = 0;
    for (int i = 0; i < 7; i++) {
        parts[i] = at ? at + used : NULL;
        used += quotient_up(counts[i], 64) * 64;
    }
    return (Room){(real *)parts[0],
                  (real *)parts[1],
                  (real *)parts[2],
                  (float *)parts[3],
                  {(uint8_t *)parts[4], (float *)parts[5], (float *)parts[6]},
                  used};
}

/* Bytes of working memory that `encode` needs */
idx encoding_room(idx tokens, idx width, idx inner, idx heads) {
    return divide_room(tokens, width, inner, heads, NULL).size;
}

/* states [layers + 1, tokens, width], of which the first is given: the output of every layer; or,
 * if they are not kept, [tokens, width]: the output of the last layer in place of the input.
 * addresses: `layers` times Layer. places, before, after: as in attention_forward. width and inner
 * are multiples of TILE. */
void encode(idx layers, const int64_t *addresses, idx width, idx inner, idx heads, float eps,
            int is_tanh, int is_int8, int is_kept, idx sequences, const int64_t *places, idx tokens,
            idx before, idx after, real *states, void *room) {
    const Layer *all = (const Layer *)addresses;
    Room r = divide_room(tokens, width, inner, heads, room);
    Attention attention = attention_of(sequences, heads, width / heads, places, tokens, before,
                                       after, r.wide, NULL, NULL, 0, 0, 1.0f);
#pragma omp parallel
    for (const Layer *l = all; l < all + layers; l++) {
        idx step = is_kept ? tokens * width : 0;
        real *in = states + (l - all) * step, *out = in + step;
        Lines lines = input_of(tokens, width, in, is_int8, r.bytes);
        apply_dense(&l->parts, tokens, width, 3 * width, lines, LINEAR, r.wide);
        attend(&attention, r.context, r.log_sums);
        lines = input_of(tokens, width, r.context, is_int8, r.bytes);
        apply_dense(&l->context, tokens, width, width, lines, LINEAR, r.dense);
        add_and_norm(tokens, width, r.dense, in, &l->attention_norm, eps, out);
        lines = input_of(tokens, width, out, is_int8, r.bytes);
        apply_dense(&l->inner, tokens, width, inner, lines, is_tanh ? TANH : ERF, r.wide);
        lines = input_of(tokens, inner, r.wide, is_int8, r.bytes);
        apply_dense(&l->outer, tokens, inner, width, lines, LINEAR, r.dense);
        add_and_norm(tokens, width, r.dense, out, &l->norm, eps, out);
    }
}
