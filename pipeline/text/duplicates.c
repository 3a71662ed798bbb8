/* Words, their runs as hashes, sets of these, and signatures of the sets.

   Called by duplicates.py, which owns the buffers and computes the same in NumPy, array by array.
   Here a block is passed over once for each result, so that nothing but the results is stored: the
   arrays between take most of NumPy's time. All arithmetic is modulo 2**64, or 2**32. */

#include <stdint.h>
#include <string.h>

/* What a character of three or four bytes is, besides the number of units that it counts by
   itself; duplicates.py fills the table. */
#define OUTSIDE 64 /* punctuation: in no word */
#define MARK 128   /* belongs to the character before it */
#define CODES 0x33480
#define WORD_UNITS 6

/* The vector loops are compiled for each of these, and the processor's is chosen when loading. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_VECTOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_VECTOR
#endif

static inline uint64_t scrambled(uint64_t h) { /* SplitMix64's finalizer, as in rng.py */
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return h ^ h >> 31;
}

/* The words of lower[0..length), valid UTF-8 in small letters; returns their number. A character
   that counts by itself begins a word, and so does the next one, unless it is a mark. */
int64_t find_words(const uint8_t *lower, int64_t length, const uint8_t *inside,
                   const uint8_t *classes, int64_t *starts, int64_t *stops, int64_t *units) {
    int64_t n = 0;
    int open = 0, alone = 0; /* whether a word is open, and is a character by itself */
    for (int64_t p = 0, next; p < length; p = next) {
        int kind = 0;
        next = p + 1;
        if (lower[p] >= 0xE0 && p + 2 < length) {
            int more = lower[p] >= 0xF0 && p + 3 < length ? 3 : 2;
            uint32_t code = lower[p] & (0x3F >> more);
            for (int i = 1; i <= more; i++) code = code << 6 | (lower[p + i] & 0x3F);
            kind = code < CODES ? classes[code] : 0;
            next += more;
        }
        if (!inside[lower[p]] || kind & OUTSIDE) {
            if (open) stops[n++] = p;
            open = alone = 0;
            continue;
        }
        int own = kind & ~MARK;
        if (open && (own || (alone && !(kind & MARK)))) {
            stops[n++] = p;
            open = 0;
        }
        alone = own != 0;
        if (!open) {
            starts[n] = p;
            units[n] = own ? own : WORD_UNITS;
            open = 1;
        }
    }
    if (open) stops[n++] = length;
    return n;
}

/* A range's polynomial in its bytes, each plus 1, whose first byte has the power 0. */
static uint64_t range_hash(const uint8_t *text, int64_t start, int64_t stop, uint64_t base) {
    uint64_t h = 0;
    while (stop > start) h = h * base + text[--stop] + 1;
    return scrambled(h);
}

/* The hash of each of text[starts[i]..stops[i]). */
void hash_ranges(const uint8_t *text, const int64_t *starts, const int64_t *stops, int64_t count,
                 const uint64_t *powers, uint64_t *hashes) {
    for (int64_t i = 0; i < count; i++)
        hashes[i] = range_hash(text, starts[i], stops[i], powers[1]);
}

/* Every run of words[0..count) that counts `wanted` units and lies in one document; returns their
   number. A run's hash is a polynomial in its words' hashes, whose last word has the power 0: the
   next run's is had by taking its first word out and more words in. powers[k] = base**k. */
int64_t find_windows(const uint8_t *text, const int64_t *starts, const int64_t *stops,
                     const int64_t *units, int64_t count, const int64_t *ends, int64_t wanted,
                     const uint64_t *powers, uint64_t *hashes_of_words, uint64_t *hashes,
                     int64_t *documents, int64_t *firsts, int64_t *lasts) {
    int64_t n = 0, document = 0, last = 0, sum = 0; /* units of the words from w to last - 1 */
    uint64_t h = 0, base = powers[1];
    for (int64_t w = 0; w < count; w++) {
        while (starts[w] >= ends[document]) document++;
        for (; last < count && sum < wanted; last++) {
            hashes_of_words[last] = range_hash(text, starts[last], stops[last], base);
            h = h * base + hashes_of_words[last];
            sum += units[last];
        }
        if (sum < wanted) break;
        if (starts[last - 1] < ends[document]) {
            hashes[n] = scrambled(h);
            documents[n] = document;
            firsts[n] = starts[w];
            lasts[n++] = stops[last - 1];
        }
        h -= hashes_of_words[w] * powers[last - 1 - w];
        sum -= units[w];
    }
    return n;
}

/* Sort values[0..n) by their bytes, the lowest first, four times in turn with `other`. */
static void sort(uint32_t *values, uint32_t *other, int64_t n) {
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t places[256] = {0}, place = 0;
        for (int64_t i = 0; i < n; i++) places[values[i] >> shift & 255]++;
        for (int b = 0; b < 256; b++) {
            int64_t these = places[b];
            places[b] = place;
            place += these;
        }
        for (int64_t i = 0; i < n; i++) other[places[values[i] >> shift & 255]++] = values[i];
        uint32_t *swapped = values;
        values = other;
        other = swapped;
    }
}

/* The upper halves of a document's hashes as a set, ascending, for each document in turn. */
void find_sets(const uint64_t *hashes, const int64_t *documents, int64_t count, uint32_t *values,
               uint32_t *other, int64_t *sizes) {
    int64_t n = 0;
    for (int64_t i = 0, first; i < count;) {
        int64_t document = documents[i];
        for (first = i; i < count && documents[i] == document; i++)
            values[n + i - first] = (uint32_t)(hashes[i] >> 32);
        sort(values + n, other, i - first);
        int64_t start = n;
        for (int64_t k = start, stop = start + i - first; k < stop; k++)
            if (n == start || values[k] != values[n - 1]) values[n++] = values[k];
        sizes[document] = n - start;
    }
}

FOR_EVERY_VECTOR
static uint32_t smallest_product(const uint32_t *values, int64_t n, uint32_t factor) {
    uint32_t smallest = UINT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        uint32_t product = values[i] * factor;
        smallest = product < smallest ? product : smallest;
    }
    return smallest;
}

/* A key for each band of `width` factors; of a document without values they stay as they are. */
void find_keys(const uint32_t *values, const int64_t *starts, const int64_t *ends,
               int64_t documents, const uint32_t *factors, int64_t bands, int64_t width,
               const uint64_t *powers, uint64_t *keys) {
    for (int64_t d = 0; d < documents; d++)
        for (int64_t band = 0, n = ends[d] - starts[d]; n && band < bands; band++) {
            uint64_t key = (uint64_t)band + 1;
            for (int64_t i = band * width; i < (band + 1) * width; i++) {
                uint32_t smallest = smallest_product(values + starts[d], n, factors[i]);
                key = scrambled(key * powers[1] + smallest);
            }
            keys[d * bands + band] = key ? key : 1;
        }
}
