/* The compiled kernels against plain loops in float64, at odd sizes, without Python and torch: for a
 * processor that this machine can only emulate. Prints what deviates too much; the number of such
 * kernels is the exit code. */

#include "kernels.h"

#if defined(FLOAT32)
#define ROUNDING 2e-5
#else
#define ROUNDING 1.6e-2
#endif

static int failures;

static double uniform(void) { /* in [-1, 1), the same on every processor */
    static uint64_t number;
    return (double)(random_word(7, number++) >> 11) * 0x1p-52 - 1.0;
}

static real *drawn_reals(idx count, double scale) {
    real *values = malloc(sizeof(real) * count);
    for (idx i = 0; i < count; i++) values[i] = narrow((float)(scale * uniform()));
    return values;
}

static double *exact_copy(idx count, const real *values) {
    double *exact = malloc(sizeof(double) * count);
    for (idx i = 0; i < count; i++) exact[i] = wide(values[i]);
    return exact;
}

/* The largest error relative to the largest value, both of them finite */
static void expect_near(const char *name, idx count, const real *found, const double *exact,
                        double most) {
    double error = 0.0, size = 1e-30;
    for (idx i = 0; i < count; i++) {
        double off = fabs(wide(found[i]) - exact[i]);
        if (!(off <= error)) error = off; /* a NaN, too */
        if (fabs(exact[i]) > size) size = fabs(exact[i]);
    }
    int is_near = error <= most * size;
    printf("%s %s: %.1e of %.1e\n", is_near ? "near" : "FAR", name, error / size, most);
    failures += !is_near;
}

/* c [rows, columns] = a [rows, depth] b [depth, columns], strides as in `product` */
static void multiply(idx rows, idx columns, idx depth, const double *a, idx a_down, idx a_across,
                     const double *b, idx b_down, idx b_across, double *c) {
    for (idx i = 0; i < rows; i++)
        for (idx j = 0; j < columns; j++) {
            double sum = 0.0;
            for (idx k = 0; k < depth; k++)
                sum += a[i * a_down + k * a_across] * b[k * b_down + j * b_across];
            c[i * columns + j] = sum;
        }
}

#if defined(FLOAT32)
static void try_products(void) {
    const idx shapes[][3] = {{1, 1, 1}, {7, 3, 5}, {65, 129, 300}, {97, 33, 17}};
    for (int s = 0; s < 4; s++)
        for (int turned = 0; turned < 4; turned++) {
            idx rows = shapes[s][0], columns = shapes[s][1], depth = shapes[s][2];
            real *a = drawn_reals(rows * depth, 1), *b = drawn_reals(depth * columns, 1);
            real *c = drawn_reals(rows * columns, 1), *bias = drawn_reals(columns, 1);
            idx a_down = turned & 1 ? 1 : depth, a_across = turned & 1 ? rows : 1;
            idx b_down = turned & 2 ? 1 : columns, b_across = turned & 2 ? depth : 1;
            double *exact = malloc(sizeof(double) * rows * columns);
            multiply(rows, columns, depth, exact_copy(rows * depth, a), a_down, a_across,
                     exact_copy(depth * columns, b), b_down, b_across, exact);
            for (idx i = 0; i < rows * columns; i++) exact[i] += bias[i % columns];
            product(rows, columns, depth, a, a_down, a_across, b, b_down, b_across, bias, 0, 0, c,
                    columns);
            expect_near("product", rows * columns, c, exact, ROUNDING);
        }
}

static void try_orthogonalise(void) {
    const idx matrices = 3, rows = 37, columns = 70, size = rows * columns;
    real *in = drawn_reals(matrices * size, 0.3), *out = drawn_reals(matrices * size, 1);
    double *x = exact_copy(matrices * size, in);
    double *gram = malloc(sizeof(double) * rows * rows), *square = malloc(sizeof(double) * rows * rows);
    double *moved = malloc(sizeof(double) * size);
    for (idx m = 0; m < matrices; m++) {
        double *at = x + m * size, norm = 0.0;
        for (idx i = 0; i < size; i++) norm += at[i] * at[i];
        for (idx i = 0; i < size; i++) at[i] /= sqrt(norm);
        for (int step = 0; step < 5; step++) {
            multiply(rows, rows, columns, at, columns, 1, at, 1, columns, gram);
            multiply(rows, rows, rows, gram, rows, 1, gram, rows, 1, square);
            for (idx i = 0; i < rows * rows; i++)
                square[i] = 2.0315 * square[i] - 4.7750 * gram[i] + 3.4445 * (i % (rows + 1) == 0);
            multiply(rows, columns, rows, square, rows, 1, at, columns, 1, moved);
            memcpy(at, moved, sizeof(double) * size);
        }
    }
    orthogonalise(matrices, rows, columns, in, out, 5, 3.4445f, -4.7750f, 2.0315f);
    expect_near("orthogonalise", matrices * size, out, x, 50 * ROUNDING);
}
#endif

#define FAR_AWAY ((idx)1 << 40)
#define SEQUENCES 4
static const int64_t PLACES[4 * SEQUENCES] = {0, 1, 3, 40, 1, 2, 37, 130};
enum { TOKENS = 170, HEADS = 3, SIDE = 32, HIDDEN = HEADS * SIDE, INNER = 224 };

/* out [TOKENS, HIDDEN]: attention of parts [TOKENS, 3, HEADS, SIDE]; dparts, unless NULL: the
 * gradient for a gradient of out */
static void attend_exactly(const double *parts, double *out, const double *gradient,
                           double *dparts) {
    double factor = 1.0 / sqrt(SIDE);
    if (dparts) memset(dparts, 0, sizeof(double) * TOKENS * 3 * HIDDEN);
    for (int s = 0; s < SEQUENCES; s++)
        for (int h = 0; h < HEADS; h++) {
            idx first = PLACES[s], length = PLACES[SEQUENCES + s];
#define PART(array, part, token) ((array) + ((first + (token)) * 3 + (part)) * HIDDEN + h * SIDE)
            for (idx q = 0; q < length; q++) {
                double shares[TOKENS], total = 0.0, towards[TOKENS], mean = 0.0;
                double *to = out + (first + q) * HIDDEN + h * SIDE;
                const double *from = gradient + (first + q) * HIDDEN + h * SIDE;
                for (idx k = 0; k < length; k++) {
                    double score = 0.0;
                    for (int i = 0; i < SIDE; i++)
                        score += PART(parts, 0, q)[i] * PART(parts, 1, k)[i];
                    total += shares[k] = exp(score * factor);
                }
                for (int i = 0; i < SIDE; i++) to[i] = 0.0;
                for (idx k = 0; k < length; k++) {
                    shares[k] /= total;
                    for (int i = 0; i < SIDE; i++) to[i] += shares[k] * PART(parts, 2, k)[i];
                }
                if (!dparts) continue;
                for (idx k = 0; k < length; k++) {
                    towards[k] = 0.0;
                    for (int i = 0; i < SIDE; i++) {
                        towards[k] += from[i] * PART(parts, 2, k)[i];
                        PART(dparts, 2, k)[i] += shares[k] * from[i];
                    }
                    mean += shares[k] * towards[k];
                }
                for (idx k = 0; k < length; k++)
                    for (int i = 0; i < SIDE; i++) {
                        double slope = factor * shares[k] * (towards[k] - mean);
                        PART(dparts, 0, q)[i] += slope * PART(parts, 1, k)[i];
                        PART(dparts, 1, k)[i] += slope * PART(parts, 0, q)[i];
                    }
            }
        }
}

static void try_attention(void) {
    const idx size = TOKENS * HIDDEN;
    real *parts = drawn_reals(3 * size, 2), *gradient = drawn_reals(size, 1);
    real *out = drawn_reals(size, 1), *dparts = drawn_reals(3 * size, 1);
    double *exact = malloc(sizeof(double) * size), *dexact = malloc(sizeof(double) * 3 * size);
    float *log_sums = malloc(sizeof(float) * TOKENS * HEADS);
    attend_exactly(exact_copy(3 * size, parts), exact, exact_copy(size, gradient), dexact);
    attention_forward(SEQUENCES, HEADS, SIDE, PLACES, TOKENS, FAR_AWAY, FAR_AWAY, parts, NULL, NULL,
                      0, 0, 1.0f, out, log_sums);
    expect_near("attention_forward", size, out, exact, ROUNDING);
    attention_backward(SEQUENCES, HEADS, SIDE, PLACES, TOKENS, FAR_AWAY, FAR_AWAY, parts, NULL,
                       NULL, 0, 0, 1.0f, out, log_sums, gradient, dparts);
    expect_near("attention_backward", 3 * size, dparts, dexact, 2 * ROUNDING);
}

static double gelu(double x) { return 0.5 * x * (1.0 + erf(x / sqrt(2.0))); }

static void norm_exactly(idx width, const double *x, const double *weight, const double *bias,
                         double *out) {
    double mean = 0.0, variance = 0.0;
    for (idx i = 0; i < width; i++) mean += x[i] / width;
    for (idx i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean) / width;
    for (idx i = 0; i < width; i++)
        out[i] = (x[i] - mean) / sqrt(variance + 1e-12) * weight[i] + bias[i];
}

static void try_elementwise(void) {
    const idx rows = 77, width = 45, size = rows * width;
    real *x = drawn_reals(size, 4), *slopes = drawn_reals(size, 1), *sums = drawn_reals(width, 1);
    real *turned = drawn_reals(size, 1), *weight = drawn_reals(width, 1);
    real *bias = drawn_reals(width, 1), *normed = drawn_reals(size, 1);
    float *statistics = malloc(sizeof(float) * 2 * rows);
    double *exact = exact_copy(size, x), *expected = malloc(sizeof(double) * size);
    memset(expected, 0, sizeof(double) * size);
    for (idx i = 0; i < size; i++) expected[i % width] += exact[i];
    column_sums(rows, width, x, sums);
    expect_near("column_sums", width, sums, expected, ROUNDING);
    transpose(rows, width, x, turned);
    for (idx i = 0; i < size; i++) expected[i % width * rows + i / width] = exact[i];
    expect_near("transpose", size, turned, expected, 0.0);
    for (idx row = 0; row < rows; row++)
        norm_exactly(width, exact + row * width, exact_copy(width, weight),
                     exact_copy(width, bias), expected + row * width);
    norm_forward(rows, width, x, weight, bias, 1e-12f, normed, statistics, statistics + rows);
    expect_near("norm_forward", size, normed, expected, ROUNDING);
    for (idx i = 0; i < size; i++) expected[i] = gelu(exact[i]);
    gelu_forward(size, x, slopes, 0);
    expect_near("gelu_forward", size, x, expected, ROUNDING);
}

static void try_loss(void) {
    const idx words = 1003, count = 9;
    real *logits = drawn_reals(words * count, 3), *bias = drawn_reals(words, 1);
    double *exact = exact_copy(words * count, logits), *expected = malloc(sizeof(double) * count);
    int64_t labels[9];
    float inverse[9], losses[9];
    uint8_t hits[9];
    real found[9];
    for (idx m = 0; m < count; m++) {
        double total = 0.0;
        labels[m] = m * 100;
        for (idx v = 0; v < words; v++) total += exp(exact[v * count + m] + wide(bias[v]));
        expected[m] = log(total) - exact[labels[m] * count + m] - wide(bias[labels[m]]);
    }
    cross_entropy(words, count, logits, bias, labels, inverse, losses, hits);
    for (idx m = 0; m < count; m++) found[m] = narrow(losses[m]);
    expect_near("cross_entropy", count, found, expected, ROUNDING);
}

static void try_adamw(void) {
    const int64_t counts[] = {1000};
    float *p = malloc(4000), *m = calloc(1000, 4), *v = calloc(1000, 4), *g = malloc(4000);
    real *copy = drawn_reals(1000, 1), *none = NULL;
    double *expected = malloc(8000);
    for (idx i = 0; i < 1000; i++) {
        p[i] = (float)uniform(), g[i] = (float)uniform();
        double mean = 0.1 * g[i], square = 0.001 * g[i] * g[i];
        expected[i] = p[i] - 0.02 * p[i] - 0.01 * mean / (sqrt(square) + 1e-6);
    }
    adamw(1, counts, &p, &m, &v, &g, &none, &copy, 1.0f, 0.01f, 0.9f, 0.999f, 1e-6f, 0.02f);
    expect_near("adamw", 1000, copy, expected, ROUNDING);
}

/* One layer with weights of [depth, columns], whose addresses `encode` takes */
static void try_encode(int is_int8) {
    const idx depths[] = {HIDDEN, HIDDEN, HIDDEN, INNER};
    const idx columns[] = {3 * HIDDEN, HIDDEN, INNER, HIDDEN}, size = TOKENS * HIDDEN;
    int64_t addresses[20], *at = addresses;
    double *weights[4], *biases[4], *norms[4];
    for (int d = 0; d < 4; d++) {
        real *weight = drawn_reals(depths[d] * columns[d], 0.2);
        float *numbers = malloc(sizeof(float) * 3 * columns[d]);
        weights[d] = exact_copy(depths[d] * columns[d], weight);
        biases[d] = malloc(sizeof(double) * columns[d]);
        for (idx j = 0; j < columns[d]; j++) biases[d][j] = numbers[j] = (float)(0.1 * uniform());
        void *panels = aligned_alloc(64, sizeof(real) * depths[d] * columns[d]);
        if (is_int8)
            quantise_weight(depths[d], columns[d], weight, columns[d], 1, panels,
                            numbers + columns[d], numbers + 2 * columns[d]);
        else
            pack_weight(depths[d], columns[d], weight, columns[d], 1, panels);
        *at++ = (int64_t)panels;
        *at++ = (int64_t)numbers;
        *at++ = is_int8 ? (int64_t)(numbers + columns[d]) : 0;
        *at++ = is_int8 ? (int64_t)(numbers + 2 * columns[d]) : 0;
        if (d % 2 == 0) continue;
        float *norm = malloc(sizeof(float) * 2 * HIDDEN);
        for (int part = 0; part < 2; part++) {
            norms[d - 1 + part] = malloc(sizeof(double) * HIDDEN);
            for (idx j = 0; j < HIDDEN; j++)
                norms[d - 1 + part][j] = norm[part * HIDDEN + j] =
                    (float)(uniform() * 0.2 + !part);
            *at++ = (int64_t)(norm + part * HIDDEN);
        }
    }
    real *states = drawn_reals(2 * size, 1);
    double *in = exact_copy(size, states), *made[4], *sum = malloc(sizeof(double) * size);
    for (int d = 0; d < 4; d++) made[d] = malloc(sizeof(double) * TOKENS * columns[d]);
    double *context = malloc(sizeof(double) * size), *half = malloc(sizeof(double) * size);
#define DENSE(d, from)                                                                             \
    multiply(TOKENS, columns[d], depths[d], from, depths[d], 1, weights[d], columns[d], 1, made[d]); \
    for (idx i = 0; i < TOKENS * columns[d]; i++) made[d][i] += biases[d][i % columns[d]]
#define NORM(d, with, to)                                                                          \
    for (idx i = 0; i < size; i++) sum[i] = made[d][i] + with[i];                                    \
    for (idx t = 0; t < TOKENS; t++)                                                                 \
    norm_exactly(HIDDEN, sum + t * HIDDEN, norms[d - 1], norms[d], to + t * HIDDEN)
    DENSE(0, in);
    attend_exactly(made[0], context, in, NULL);
    DENSE(1, context);
    NORM(1, in, half);
    DENSE(2, half);
    for (idx i = 0; i < TOKENS * INNER; i++) made[2][i] = gelu(made[2][i]);
    DENSE(3, made[2]);
    NORM(3, half, sum);
    void *room = aligned_alloc(64, quotient_up(encoding_room(TOKENS, HIDDEN, INNER, HEADS), 64) * 64);
    encode(1, addresses, HIDDEN, INNER, HEADS, 1e-12f, 0, is_int8, 1, SEQUENCES, PLACES, TOKENS,
           FAR_AWAY, FAR_AWAY, states, room);
    expect_near(is_int8 ? "encode, int8" : "encode", size, states + size, sum,
                is_int8 ? 3e-2 : ROUNDING);
}

int main(void) {
#if defined(FLOAT32)
    try_products();
    try_orthogonalise();
#endif
    try_elementwise();
    try_attention();
    try_loss();
    try_adamw();
    try_encode(0);
    try_encode(1);
    return failures;
}
