/* Matrix products where a library leaves much of the processor's rate unused: with the tile unit in
 * bfloat16, and in float32. */

#include "kernels.h"

#if defined(MAY_HAVE_TILES)
/* Matrix products by the tile unit, for those that a library computes slowly (products.py).
 * Operands are rearranged for it in the cache, STEPS * TILE of the depth at a time, or at once up
 * to ONCE * TILE, so that sums need not be stored. Every sum has the same order for any number of
 * threads. */
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
static void multiply_panel(idx depth, idx rows, idx side, const real *a, idx a_stride,
                           const real *b, idx b_stride, int is_turned, real *out, idx stride) {
    /* Sums of the whole panel wait in the cache while the depth goes by in pieces of STEPS tiles; a
     * depth of up to ONCE tiles is done in one piece, whose sums need not be stored at all. */
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
                add_steps(steps, left + i * steps * SQUARE, TILE, SQUARE,
                          right + j * steps * SQUARE, begin > 0, square);
                if (begin + steps < all) continue;
                if (is_turned)
                    round_turned_sums(square, out + (j * stride + i) * TILE, stride);
                else
                    round_sums(square, out + (i * stride + j) * TILE, stride);
            }
    }
}

/* out [parts, rows, columns / parts] = transpose of a [depth, rows], times each of the blocks of
 * columns of b [depth, columns]. rows and columns / parts are multiples of TILE; rows > columns
 * only with a single part. Threads divide the wider operand. */
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
        for (int i = 0; i < LANES; i++) *(pairs *)(out + half * SQUARE / 2 + i * TILE) = line[i];
    }
}

static inline __m512 wide_line(const real *in) {
    __m256i line = _mm256_loadu_si256((const __m256i *)in);
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(line), 16);
}

/* out [TILE, TILE] = factor * sums + share * in. in may be NULL, or out; its lines are in_stride
 * apart, those of out `stride`. */
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
            __m512i high =
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(line + stride)));
            _mm512_storeu_si512(out + half * SQUARE / 2 + i * TILE,
                                _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

/* Fetch TILE lines, which may be beyond the end of their matrix */
static inline void fetch_lines(const real *in, idx stride) {
    for (idx row = 0; row < TILE; row++) __builtin_prefetch(in + row * stride, 0, 2);
}

/* c [rows, columns] = a b + bias [columns], if any, or c += a b if is_added, for lines of a, lines
 * or columns of b, and lines of c that are contiguous. All sizes are multiples of TILE. Threads
 * divide the columns. */
void product(idx rows, idx columns, idx depth, const real *a, idx a_down, idx a_across,
             const real *b, idx b_down, idx b_across, const real *bias, int is_added,
             int is_symmetric, real *c, idx stride) {
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
                        const real *in =
                            b + (first + j * TILE) * b_across + (begin + step) * TILE * b_down;
                        real *out = right + (j * steps + step) * SQUARE;
                        fetch_lines(in + TILE * b_stride, b_stride);
                        if (b_across == 1)
                            tile_paired(in, b_down, out);
                        else
                            tile_turned(in, b_across, out);
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
            /* X <- first X + (third G + fifth G G) X with G = X X^T. A right operand is the turned
             * or paired form of what is at hand, so a step converts three times, within the cache,
             * and never leaves squares. */
            for (int step = 0; step < steps; step++) {
                for (idx i = 0; i < down * across; i++)
                    tile_turned(x + i * SQUARE, TILE, right + i * SQUARE);
                multiply_squares(down, down, across, 1.0f, x, right, 0.0f, NULL, 1, gram);
                for (idx i = 0; i < down * down; i++)
                    tile_turned(gram + i * SQUARE, TILE, right + i * SQUARE);
                multiply_squares(down, down, down, fifth, gram, right, third, gram, 1, factor);
                for (idx j = 0; j < across; j++)
                    for (idx i = 0; i < down; i++)
                        tile_paired(x + (i * across + j) * SQUARE, TILE,
                                    right + (j * down + i) * SQUARE);
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

/* Whether the processor multiplies bfloat16 without widening it first */
int multiplies_bfloat16(void) {
#if defined(HAS_BF16_PRODUCTS)
    return 1;
#else
    return 0;
#endif
}

#if defined(FLOAT32)
/* Matrix products, for processors whose BLAS leaves much of their rate unused (products.py). Sums
 * of HEIGHT rows and WIDTH columns are held in registers. Both operands are copied into the order
 * in which these sums read them: a panel of WIDTH columns stays in the first level of the cache, a
 * band of rows in the second. (Goto and van de Geijn 2008, "Anatomy of high-performance matrix
 * multiplication".) Every sum has the same order for any number of threads. */
#define HEIGHT 6
#define WIDTH (2 * LANES)
#define DEPTH 256
#define BAND 96
#define SYMMETRIC_BAND 24

/* A matrix in memory: element (row, column) is at [row * down + column * across]. */
typedef struct {
    const float *at;
    idx down, across;
} Operand;

static inline const float *element(Operand m, idx row, idx column) {
    return m.at + row * m.down + column * m.across;
}

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
        if (row + HEIGHT <= rows)
            pack(depth, HEIGHT, HEIGHT, turned, out);
        else
            pack(depth, rows - row, HEIGHT, turned, out);
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
 * elements on or above the diagonal are computed, and mirrored. Lines of c are contiguous. */
typedef struct {
    idx rows, columns, depth;
    Operand a, b;
    const float *bias;
    int is_added, is_symmetric;
    float *c;
    idx stride;
} Product;

/* What thread number `me` computes of a product. Threads form a grid over c; each packs the panels
 * of b for its columns and the bands of a for its rows, so that none waits for another. A grid that
 * is long on one side packs much of one operand many times over, hence the choice. */
static void multiply_share(const Product *p, idx threads, idx me) {
    idx rows = p->rows, columns = p->columns, depth = p->depth, down = threads;
    for (idx n = 1; n < threads && !p->is_symmetric; n++) /* the grid that packs least */
        if (threads % n == 0 &&
            threads / n * rows + n * columns < threads / down * rows + down * columns)
            down = n;
    idx across = threads / down;
    idx bands = quotient_up(rows, down * (p->is_symmetric ? SYMMETRIC_BAND : BAND)) * down;
    idx band = quotient_up(quotient_up(rows, bands), HEIGHT) * HEIGHT;
    idx side = quotient_up(quotient_up(columns, across), WIDTH) * WIDTH;
    idx most = quotient_up(depth, quotient_up(depth, DEPTH));
    idx left_end = me % across * side, right_end = minimum(columns, left_end + side);
    float lines[BAND * DEPTH];
    float *panels = scratch(sizeof(float) * side * most);
    for (idx begin = 0; begin < depth && left_end < right_end; begin += most) {
        idx some = minimum(most, depth - begin);
        const float *start = p->is_added || begin ? p->c : p->bias;
        idx start_stride = p->is_added || begin ? p->stride : 0;
        for (idx j = left_end; j < right_end; j += WIDTH)
            pack_panel(some, minimum(WIDTH, right_end - j),
                       (Operand){element(p->b, begin, j), p->b.down, p->b.across},
                       panels + (j - left_end) * some);
        for (idx top = me / across * band; top < rows; top += down * band) {
            idx end = minimum(rows, top + band);
            pack_band(end - top, some,
                      (Operand){element(p->a, top, begin), p->a.down, p->a.across}, lines);
            for (idx j = p->is_symmetric ? top / WIDTH * WIDTH : left_end; j < right_end;
                 j += WIDTH)
                for (idx i = top; i < end; i += HEIGHT) {
                    idx height = minimum(HEIGHT, end - i), width = minimum(WIDTH, right_end - j);
                    idx skip = p->is_symmetric ? i - j : -HEIGHT;
                    const float *of_a = lines + (i - top) * some;
                    const float *of_b = panels + (j - left_end) * some;
                    const float *from = start ? start + i * start_stride + j : NULL;
                    float *out = p->c + i * p->stride + j;
                    if (height == HEIGHT && width == WIDTH && skip <= -HEIGHT)
                        add_panel(some, of_a, of_b, from, start_stride, out, p->stride);
                    else
                        add_edge(some, of_a, of_b, from, start_stride, out, p->stride, height,
                                 width, skip);
                }
            if (p->is_symmetric && begin + some == depth) mirror(rows, top, end, p->c, p->stride);
        }
    }
}

void product(idx rows, idx columns, idx depth, const float *a_at, idx a_down, idx a_across,
             const float *b_at, idx b_down, idx b_across, const float *bias, int is_added,
             int is_symmetric, float *c, idx stride) {
    Product p = {rows,     columns,      depth, {a_at, a_down, a_across}, {b_at, b_down, b_across},
                 bias,     is_added,     is_symmetric,
                 c,        stride};
    idx threads = omp_get_max_threads();
#pragma omp parallel num_threads(threads)
    for (idx me = omp_get_thread_num(); me < threads; me += omp_get_num_threads())
        multiply_share(&p, threads, me);
}

/* out [size, size] = a b by one thread, for operands that commute: the product is symmetric */
static void multiply_symmetric(idx size, const float *a, const float *b, float *out) {
    Product p = {size, size, size, {a, size, 1}, {b, size, 1}, NULL, 0, 1, out, size};
    multiply_share(&p, 1, 0);
}

/* out = first I + third gram + fifth gram^2 */
static void polynomial(idx size, float first, float third, float fifth, const float *gram,
                       float *out) {
    multiply_symmetric(size, gram, gram, out);
    for (idx i = 0; i < size * size; i++) out[i] = fifth * out[i] + third * gram[i];
    for (idx i = 0; i < size; i++) out[i * size + i] += first;
}

/* Muon's Newton-Schulz iteration for matrices of [rows, columns], rows <= columns, each by one
 * thread, which waits for no other. As in `_orthogonaliser` (optimizer.py), what is iterated on is
 * the matrix's Gram matrix, whose trace is the square of the matrix's norm. */
void orthogonalise(idx matrices, idx rows, idx columns, const float *in, float *out, int steps,
                   float first, float third, float fifth) {
    idx size = rows * columns, square = rows * rows, bytes = sizeof(float) * 4 * square;
#pragma omp parallel
    {
        float *room = allocated(malloc(bytes), bytes);
        float *gram = room, *factor = gram + square, *total = factor + square,
              *half = total + square;
#pragma omp for schedule(dynamic)
        for (idx m = 0; m < matrices; m++) {
            Operand x = {in + m * size, columns, 1}, turned = {x.at, 1, columns};
            Product p = {rows, rows, columns, x, turned, NULL, 0, 1, gram, rows};
            multiply_share(&p, 1, 0);
            float squares = 0.0f;
            for (idx i = 0; i < rows; i++) squares += gram[i * rows + i];
            float scale = 1.0f / fmaxf(sqrtf(squares), 1e-7f);
            for (idx i = 0; i < square; i++) gram[i] *= scale * scale;
            polynomial(rows, first, third, fifth, gram, total);
            memcpy(factor, total, sizeof(float) * square);
            for (int step = 1; step < steps; step++) {
                multiply_symmetric(rows, factor, gram, half);
                multiply_symmetric(rows, half, factor, gram);
                polynomial(rows, first, third, fifth, gram, factor);
                multiply_symmetric(rows, factor, total, half);
                float *old = total;
                total = half;
                half = old;
            }
            for (idx i = 0; i < square; i++) total[i] *= scale;
            p = (Product){rows, columns, rows, {total, rows, 1}, x, NULL, 0, 0, out + m * size,
                          columns};
            multiply_share(&p, 1, 0);
        }
        free(room);
    }
}
#endif
