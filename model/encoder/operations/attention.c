/* Attention that stores no scores: both passes. */

#include "kernels.h"

/* Attention in blocks of SIDE queries and SIDE keys, whose scores stay in cache (FlashAttention;
 * Dao et al. 2022). Operands have the input type; sums and softmax are float32. Scores are
 * transposed, [keys, queries]: each lane holds a query of its own, so the softmax needs no
 * reduction across lanes, and probabilities are directly an operand of the next product. The
 * backward pass recomputes them. Products work on whole tiles, padded with zeros along their depth,
 * and elsewhere with anything; everything else, on the keys and the lanes of queries that exist. */
#define SIDE 128
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
/* Padding at the end of each array, so that loads from one are not mistaken for loads of recent
 * stores at the same page offset of another */
#define UNUSED 336
/* left operand, [rows, depth] */
typedef real Lines[SIDE * LINE + PAIR * UNUSED];
/* right operand, [depth / PAIR, columns]: pairs of lines */
typedef pair Pairs[SIDE / PAIR * ROW + UNUSED];
typedef float Matrix[SIDE * ROW + UNUSED];

#if defined(MAY_HAVE_TILES)
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
            /* Each tile that is loaded is multiplied with two others. At the edge, tiles of which
             * nothing is needed are neither loaded nor multiplied. */
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

/* c [rows, columns] = a b, or c += a b if is_added, for at least as many rows and columns; the
 * depth is a whole number of tiles, padded with zeros */
static void multiply(idx rows, idx columns, idx depth, const real *a, const pair *b, int is_added,
                     float *c) {
#if defined(MAY_HAVE_TILES)
    if (has_tiles()) {
        multiply_tiles(rows, columns, depth, a, b, is_added, c);
        return;
    }
#endif
    rows = padded(rows), columns = padded(columns), depth = padded(depth);
    /* Sums of ROWS rows and two vectors of columns stay in registers along the whole depth; every
     * pair of lines of b is loaded once for all these rows. */
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
    for (idx row = 0; row < rows; row++)
        round_line(columns, 1.0f, in + row * ROW, out + row * LINE);
}

/* out [rows, width], lines `stride` apart, = factor [rows] * transpose of in; overwrites transposed
 * */
static void round_transposed(idx rows, idx width, const float *factor, const float *in,
                             float *transposed, real *out, idx stride) {
    transpose_pairs(in_lanes(width), in_lanes(rows), (const pair *)in, ROW, (pair *)transposed,
                    ROW);
    for (idx row = 0; row < rows; row++)
        round_line(width, factor[row], transposed + row * ROW, out + row * stride);
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
    pairs n = (pairs) __builtin_convertvector(inside + 126.5f, integers); /* n + 126 >= 0 */
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
    return (Head){.of = a,
                  .length = a->lengths[s],
                  .first = a->starts[s] * line + head * a->width,
                  .statistics = head * a->tokens + a->starts[s],
                  .number = a->numbers[s] + head * a->sides[s] * a->sides[s],
                  .side = a->sides[s],
                  .query = query,
                  .key = query + line,
                  .value = query + 2 * line,
                  .stride = 3 * line,
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
typedef struct {
    idx query, queries, key, keys;
} Part;

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
    /* Whole strips are usually visible to all queries; only those on the edge of the window, of the
     * length or of the causal half are masked. */
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
    /* The number of a probability is its place in [sequences, heads, queries, keys], as on the path
     * without this kernel, so both draw the same mask, whatever part is computed when. A query's
     * keys are neighbours there, and four of them share a word; the next query's is `side` / 4
     * words on. */
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
        for (idx i = 0; i < in_lanes(strip.queries); i++)
            values[row * ROW + i] *= factors[row * ROW + i];
}

/* Running softmax of TILE queries: maxima in units of ln 2, and sums of 2^(score - maximum) */
typedef struct {
    float largest[TILE], sum[TILE];
} Softmax;

/* Before its first key, a query has a maximum below every score */
#define LOWEST -1e30f
/* A maximum need not be that of all keys, as weights of any size have the same relative precision:
 * it is raised when a sum gets halfway to float32's limit. */
#define MOST 0x1p64f

/* Raise the maxima to those of factor * scores [keys, queries], and rescale sums, and values
 * [width, queries], accordingly */
static void raise_maxima(Part strip, float factor, const float *scores, Softmax *softmax, idx width,
                         float *values) {
    for (idx i = 0; i < strip.queries; i += LANES) {
        /* What was summed relative to the old maximum: 2^(s - new) = 2^(s - old) 2^(old - new) */
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
 * and 0 behind the last key; sums: the present ones plus the weights as rounded, before dropout.
 * Fetches the keys that follow, from `next`. Returns whether a sum exceeds MOST, or is NaN. */
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
        /* not `sum > MOST`, which is false for NaN */
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
        struct {
            Matrix key, value;
        } gradients[GROUP];
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
typedef struct {
    Lines key, value;
} Keys;

/* Accumulate one part for its queries, from the column `at` of their block on. Products with old
 * weights are added before a rescaling. */
static void part_forward(const Head *h, Part part, Workspace *w, const Keys *of_keys, idx key,
                         Queries *q, idx at) {
    /* The online softmax. Invariant before and after each strip of keys: `sum` adds up 2^(score -
     * largest) over all keys so far, and `context`, together with the weights of [summed, from)
     * that are still to be multiplied, their values with the same weights. `largest` cancels in the
     * end, so any number will do, as long as it is the same in both. It is therefore not raised for
     * every larger score, as in FlashAttention: a strip is exponentiated with the present maxima,
     * and only if a sum gets too large, or before the first strip, are the waiting products added,
     * the maxima raised, sums and context rescaled, and the strip done again. Usually that happens
     * once per tile of queries, and no other strip is searched for its maximum. */
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
    /* Keys and values are converted once per head and read by every block of queries. Of these, a
     * group is in work together: its queries and sums stay in the second level of the cache while
     * blocks of keys pass by, so that each is read from the third level once per group. */
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
            /* Division by the sum, which normalises the softmax, comes last, and takes the
             * dropout's scale along. For the backward pass, maximum and sum are one number: their
             * probabilities are 2^(score - log_sum). */
            for (idx i = 0; i < queries; i++) {
                const Softmax *softmax = q->softmax + i / TILE;
                log_sums[query + i] = softmax->largest[i % TILE] + log2f(softmax->sum[i % TILE]);
                factors[i] = h->of->scale / softmax->sum[i % TILE];
            }
            round_transposed(queries, width, factors, q->context, w->scores, out + query * line,
                             line);
        }
    }
}

void attend(const Attention *a, real *out, float *log_sums) {
    /* Keys are prepared once for all queries of a head, unless there are fewer heads than threads.
     * */
    idx longest = longest_of(a), of_all = maximum(a->sequences * a->heads, 1);
    idx threads = omp_get_num_threads();
    idx pieces = maximum(minimum((longest + SIDE - 1) / SIDE, (threads + of_all - 1) / of_all), 1);
    Workspace *w = take_workspace(longest, sizeof(Keys));
#pragma omp for schedule(dynamic)
    for (idx at = 0; at < a->sequences * a->heads * pieces; at++) {
        Head h = head_of(a, at / pieces);
        idx blocks = (h.length + SIDE - 1) / SIDE, piece = at % pieces;
        idx begin = blocks * piece / pieces * SIDE, end = blocks * (piece + 1) / pieces * SIDE;
        if (begin < end)
            head_forward(&h, begin, minimum(end, h.length), w, (Keys *)(w + 1), out + h.first,
                         log_sums + h.statistics);
    }
    release_workspace();
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
    Attention a = attention_of(sequences, heads, width, places, tokens, before, after, parts,
                               cosine, sine, stream, limit, scale);
#pragma omp parallel
    attend(&a, out, log_sums);
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
        multiply(strip.keys, width, queries, w->lines, of_queries->gradient, 1,
                 dvalue + first * ROW);
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
    /* With probabilities p, dropout mask m and g the gradient of the context vectors: dv = p m g;
     * the softmax gives ds = p (m g v - along); and dk, dq are ds times queries and keys. Gradients
     * of keys and values are summed over queries and belong to the group, those of queries over
     * keys and are kept with every block of the head. */
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
        for (idx query = maximum(group - h->of->after, 0) / SIDE * SIDE; query < stop;
             query += SIDE)
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
    Attention a = attention_of(sequences, heads, width, places, tokens, before, after, parts,
                               cosine, sine, stream, limit, scale);
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
