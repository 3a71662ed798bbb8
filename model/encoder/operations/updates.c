/* The optimizers' updates: AdamW, Muon, and the norm of the gradients. */

#include "kernels.h"

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
/*  */
void squared_gradients(idx tensors, const int64_t *counts, float *const *exact,
                       real *const *rounded, double *sums) {
/* Tensors are many and of any size, so all threads work on each, and nobody waits at its end
 * (`nowait`): as shares are static, whoever is done goes on with the next tensor. */
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
