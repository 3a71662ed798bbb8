/* WordPiece over a block of cleaned UTF-8 text: pre-tokens are split, looked up, and tokenised if
 * new.
 *
 * Compiled on first use (artifacts/runtime/native.py) and called by wordpiece.py, which owns all
 * buffers passed in. The caller obtains the normalisation of each character from `tokenizers` once
 * and it is cached here; a pre-token whose characters depend on their neighbours is returned to the
 * caller whole.
 *
 * A pre-token of at most 16 bytes is its own key, two zero-padded words (text contains no NUL);
 * longer ones are compared in an arena. All tables use open addressing and are at most half full.
 *
 * Word lengths and piece counts are unpredictable, so the hot loop does not branch on them. One
 * pass over the text lower-cases ASCII and finds the starts of pre-tokens, 64 bytes at a time as
 * the bits of a word. Then a batch of pre-tokens is hashed and their slots prefetched. Then they
 * are looked up, and all ids of a slot are written, however many are valid. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys and bits are read as little-endian words"
#endif

enum { DONE, NEED_CHARACTER, NEED_PRE_TOKEN, NEED_ROOM, NO_MEMORY };

#define SHORT_BYTES 16
#define MAX_CACHED_BYTES 4096
#define WORD_BYTES 512 /* bound on the bytes of a word of at most 100 characters */
#define CODE_POINTS 0x110000
#define MAX_MEANING 64
#define BATCH 128 /* pre-tokens prefetched together */
#define LARGE_PAGE ((uint64_t)1 << 21)

#define SLOT_BYTES 12 /* for the ids in a slot */

typedef uint8_t Lane __attribute__((vector_size(16)));
typedef char Signs __attribute__((vector_size(16)));
/* A cached pre-token of at most 16 bytes. `count` is stored plus one: 0 marks a free slot, and
 * pre-tokens without ids can be cached. More ids than fit into a slot are in the pool, and their
 * offset there takes the place of the first ones. Two entries fill a cache line. */
typedef struct {
    uint64_t low, high; /* the bytes, zero-padded */
    uint32_t count;
    uint8_t ids[SLOT_BYTES];
} Short;

/* A longer one: its bytes are at `key` in the arena of keys, its ids at `value` in the pool. */
typedef struct {
    uint64_t hash;
    uint32_t key, length, value, count;
} Long;

/* A word-piece: its bytes, zero-padded; or their hash, with `piece` where they are spelled */
typedef struct {
    uint64_t low, high;
    uint32_t kind, piece; /* kind: length << 1 | whether it continues a word */
    int32_t id;
} Piece;

/* What normalisation makes of a character; spaces separate words. If it depends on the neighbours,
 * it is unsafe. */
typedef struct {
    uint8_t length, unsafe, bytes[MAX_MEANING];
} Meaning;

typedef struct {
    int lowercase, wide; /* wide: ids have 32 bits instead of 16 */
    uint32_t unk, max_characters, slot_ids; /* slot_ids: how many fit into a slot */
    uint8_t isolated[1 << 16]; /* three-byte characters that are pre-tokens by themselves */
    uint64_t masks[SHORT_BYTES + 1][2]; /* by length: the bits of that many bytes in two words */
    /* of the current text */
    uint8_t *folded; /* its bytes, with ASCII lower-cased for uncased models */
    uint64_t room_folded;
    uint64_t *borders, room_borders; /* one bit per byte: a pre-token or white space starts here */
    uint64_t *begins, room_begins; /* one bit per byte: a pre-token starts here */
    /* of the vocabulary */
    Piece *pieces;
    uint64_t piece_mask;
    uint8_t *spelling;
    uint32_t longest_piece;
    uint32_t sizes[2][1 << 16]; /* by first two bytes: bit n if a piece has n; bit 31: or more */
    /* the cache of pre-tokens */
    Short *shorts;
    uint64_t short_mask, n_shorts;
    Long *longs;
    uint64_t long_mask, n_longs;
    uint8_t *keys;
    uint64_t n_keys, room_keys;
    uint32_t *pool;
    uint64_t n_pool, room_pool;
    uint64_t max_entries, max_pool;
    /* what the caller has said about characters */
    uint32_t *meaning_of; /* by code point: place in `meanings` plus one; 0: not known yet */
    Meaning *meanings;
    uint32_t n_meanings, room_meanings;
    /* ids of the current pre-token */
    uint32_t *found;
    uint64_t n_found, room_found;
} State;

/* ---- hashing ---- */

/* Two multiplications spread the 16 bytes of a key; tables take the lower bits, so the upper ones
 * are folded into these. */
static inline uint64_t mixed(uint64_t low, uint64_t high) {
    uint64_t h = (low ^ (high * 0x9E3779B97F4A7C15u)) * 0xFF51AFD7ED558CCDu;
    return h ^ (h >> 32);
}

static uint64_t hash_of(const uint8_t *bytes, uint64_t length) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint64_t i = 0; i < length; i++) h = (h ^ bytes[i]) * 0x100000001B3u;
    return mixed(h, length);
}

/* ---- growing ---- */

/* Make room for `needed` elements of `size` bytes, by doubling; 0 if there is no memory, and then
 * the array is as it was. */
static int grow(void **array, uint64_t *room, uint64_t needed, uint64_t size) {
    if (needed <= *room) return 1;
    uint64_t larger = *room ? *room : 1024;
    while (larger < needed) larger *= 2;
    void *moved = realloc(*array, larger * size);
    if (!moved) return 0;
    *array = moved;
    *room = larger;
    return 1;
}

/* Two slots per cache line; large tables use huge pages if available. */
static Short *short_table(uint64_t slots) {
    uint64_t size = slots * sizeof(Short), page = size < LARGE_PAGE ? 64 : LARGE_PAGE;
    Short *table = aligned_alloc(page, size);
    if (!table) return NULL;
#ifdef MADV_HUGEPAGE
    if (page == LARGE_PAGE) madvise(table, size, MADV_HUGEPAGE);
#endif
    return memset(table, 0, size);
}

/* Entries are put anew into a table twice as large. Nothing is ever removed from a table, only all
 * of it at once (`forget`), so a free slot ends every search. */
static int grow_shorts(State *s) {
    uint64_t slots = 2 * (s->short_mask + 1);
    Short *table = short_table(slots);
    if (!table) return 0;
    for (uint64_t i = 0; i <= s->short_mask; i++) {
        if (!s->shorts[i].count) continue;
        uint64_t at = mixed(s->shorts[i].low, s->shorts[i].high) & (slots - 1);
        while (table[at].count) at = (at + 1) & (slots - 1);
        table[at] = s->shorts[i];
    }
    free(s->shorts);
    s->shorts = table;
    s->short_mask = slots - 1;
    return 1;
}

static int grow_longs(State *s) {
    uint64_t slots = 2 * (s->long_mask + 1);
    Long *table = calloc(slots, sizeof *table);
    if (!table) return 0;
    for (uint64_t i = 0; i <= s->long_mask; i++) {
        if (!s->longs[i].count) continue;
        uint64_t at = s->longs[i].hash & (slots - 1);
        while (table[at].count) at = (at + 1) & (slots - 1);
        table[at] = s->longs[i];
    }
    free(s->longs);
    s->longs = table;
    s->long_mask = slots - 1;
    return 1;
}

/* Empty the cache when it is full: the frequent pre-tokens are back at once, and no entry has to
 * carry when it was used last. */
static void forget(State *s) {
    memset(s->shorts, 0, (s->short_mask + 1) * sizeof *s->shorts);
    memset(s->longs, 0, (s->long_mask + 1) * sizeof *s->longs);
    s->n_shorts = s->n_longs = s->n_keys = s->n_pool = 0;
}

/* ---- word-pieces ---- */

typedef struct {
    uint64_t low, high;
    uint32_t kind;
} PieceKey;

/* The key of a piece: its bytes, or the hash of a longer one. 16 bytes must be readable. */
static inline PieceKey piece_key(const State *s, const uint8_t *bytes, uint32_t length,
                                 uint32_t inner) {
    PieceKey key = {0, 0, length << 1 | inner};
    if (length > SHORT_BYTES) {
        key.low = hash_of(bytes, length);
        return key;
    }
    memcpy(&key.low, bytes, 8);
    memcpy(&key.high, bytes + 8, 8);
    key.low &= s->masks[length][0];
    key.high &= s->masks[length][1];
    return key;
}

static inline uint64_t piece_slot(const State *s, PieceKey key) {
    return (mixed(key.low, key.high) + key.kind) & s->piece_mask;
}

/* The id of the piece with this key, or -1. Short keys are the bytes themselves; a long one is a
 * hash, so the spelling is compared, too. */
static inline int32_t piece_id(const State *s, PieceKey key, const uint8_t *bytes) {
    for (uint64_t at = piece_slot(s, key);; at = (at + 1) & s->piece_mask) {
        const Piece *piece = &s->pieces[at];
        if (piece->id < 0) return -1;
        if (piece->low != key.low || piece->high != key.high || piece->kind != key.kind) continue;
        uint32_t length = key.kind >> 1;
        if (length <= SHORT_BYTES || !memcmp(s->spelling + piece->piece, bytes, length))
            return piece->id;
    }
}

static inline uint32_t first_two(const uint8_t *bytes, uint32_t length) {
    return bytes[0] | (length > 1 ? (uint32_t)bytes[1] << 8 : 0);
}

/* Whether this is a UTF-8 continuation byte */
static inline int is_inside(uint8_t byte) { return (byte & 0xC0) == 0x80; }

static int put_found(State *s, uint32_t id) {
    if (!grow((void **)&s->found, &s->room_found, s->n_found + 1, sizeof *s->found)) return 0;
    s->found[s->n_found++] = id;
    return 1;
}

/* Longest match first (reference: tokenization.py:300-359); [UNK] if a word cannot be segmented. 16
 * bytes after the word must be readable. */
static int put_word(State *s, const uint8_t *word, uint32_t length) {
    /* Of the lengths from the longest down, most would be searches that fail. The first two bytes
     * say which lengths occur at all: one bit each, and few of them, of which the longest is found
     * by counting leading zeros. Which of these matches cannot be predicted, so their slots are
     * prefetched together. */
    uint64_t begin = s->n_found;
    for (uint32_t start = 0; start < length;) {
        const uint8_t *rest = word + start;
        uint32_t inner = start > 0, left = length - start;
        uint32_t most = left < s->longest_piece ? left : s->longest_piece;
        const uint32_t *sizes = s->sizes[inner];
        /* the lengths of pieces with these first bytes; bit 31: that length or more */
        uint32_t fitting = sizes[first_two(rest, 1)] & 2;
        if (most > 1) fitting |= sizes[first_two(rest, 2)] & ~2u;
        if (most < 31) fitting &= ((uint32_t)2 << most) - 1;
        uint32_t few = fitting & (((uint32_t)2 << SHORT_BYTES) - 1);
        for (uint32_t bits = few; bits; bits &= bits - 1) {
            PieceKey key = piece_key(s, rest, (uint32_t)__builtin_ctz(bits), inner);
            __builtin_prefetch(&s->pieces[piece_slot(s, key)]);
        }
        /* Lengths over 16, which share bit 31 from there on, are tried one by one; then the short
         * ones by their bits. A match must not end inside a character, as the rest would not be
         * text. */
        int32_t id = -1;
        uint32_t size = fitting == few ? SHORT_BYTES : most;
        for (; size > SHORT_BYTES && id < 0; size -= id < 0)
            if (fitting >> (size < 31 ? size : 31) & 1 && !(size < left && is_inside(rest[size])))
                id = piece_id(s, piece_key(s, rest, size, inner), rest);
        for (; few && id < 0; few &= ~((uint32_t)1 << size)) {
            size = 31 - (uint32_t)__builtin_clz(few);
            if (!(size < left && is_inside(rest[size])))
                id = piece_id(s, piece_key(s, rest, size, inner), rest);
        }
        /* One stretch without a piece makes the whole word unknown, with what was found of it. */
        if (id < 0) {
            s->n_found = begin;
            return put_found(s, s->unk);
        }
        if (!put_found(s, (uint32_t)id)) return 0;
        start += size;
    }
    return 1;
}

/* Decode one UTF-8 character; an invalid byte is U+FFFD, so nothing is read beyond the text. */
static uint32_t decode(const uint8_t *text, uint64_t length, uint32_t *code) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t lead = text[0];
    *code = lead < 0x80 ? lead : 0xFFFD;
    uint32_t size = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    if (size == 1 || size > length) return 1;
    uint32_t value = lead & (0x7F >> size);
    for (uint32_t i = 1; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80) return 1;
        value = value << 6 | (text[i] & 0x3F);
    }
    if (value < least[size] || value >= CODE_POINTS || (value >= 0xD800 && value < 0xE000))
        return 1;
    *code = value;
    return size;
}

static int end_word(State *s, const uint8_t *word, uint32_t *bytes, uint32_t *characters) {
    int fine = 1;
    if (*characters > s->max_characters)
        fine = put_found(s, s->unk);
    else if (*characters)
        fine = put_word(s, word, *bytes);
    *bytes = *characters = 0;
    return fine;
}

/* The pieces of a pre-token with non-ASCII characters, after normalising each of them. */
static int put_words(State *s, const uint8_t *text, uint64_t length, int64_t *unknown) {
    /* All characters are looked up before anything is put out, so that a call that has to ask the
     * caller can be repeated from the start of the pre-token. */
    uint8_t word[WORD_BYTES + SHORT_BYTES] = {0};
    uint32_t bytes = 0, characters = 0, code, size;
    for (uint64_t at = 0; at < length; at += size) {
        size = decode(text + at, length - at, &code);
        if (!s->meaning_of[code]) {
            *unknown = code;
            return NEED_CHARACTER;
        }
        if (s->meanings[s->meaning_of[code] - 1].unsafe) return NEED_PRE_TOKEN;
    }
    for (uint64_t at = 0; at < length; at += size) {
        size = decode(text + at, length - at, &code);
        const Meaning *meaning = &s->meanings[s->meaning_of[code] - 1];
        for (uint32_t i = 0; i < meaning->length; i++) {
            uint8_t byte = meaning->bytes[i];
            if (byte == ' ') {
                if (!end_word(s, word, &bytes, &characters)) return NO_MEMORY;
                continue;
            }
            characters += (byte & 0xC0) != 0x80;
            if (bytes < WORD_BYTES) word[bytes++] = byte; /* a longer word becomes [UNK] anyway */
        }
    }
    return end_word(s, word, &bytes, &characters) ? DONE : NO_MEMORY;
}

/* ---- cache of pre-tokens ---- */

/* Copy the current ids into the pool; value: their offset there */
static int kept(State *s, uint32_t *value) {
    if (!grow((void **)&s->pool, &s->room_pool, s->n_pool + s->n_found, sizeof *s->pool)) return 0;
    memcpy(s->pool + s->n_pool, s->found, s->n_found * sizeof *s->pool);
    *value = (uint32_t)s->n_pool;
    s->n_pool += s->n_found;
    return 1;
}

/* Cache the current ids under a key that is not in the table yet. */
static int remember_short(State *s, uint64_t low, uint64_t high) {
    if (2 * (s->n_shorts + 1) > s->short_mask && !grow_shorts(s)) return 0;
    uint64_t at = mixed(low, high) & s->short_mask;
    while (s->shorts[at].count) at = (at + 1) & s->short_mask;
    Short entry = {.low = low, .high = high, .count = (uint32_t)s->n_found + 1};
    if (s->n_found > s->slot_ids) {
        uint32_t value;
        if (!kept(s, &value)) return 0;
        memcpy(entry.ids, &value, sizeof value);
    }
    for (uint64_t i = 0; s->n_found <= s->slot_ids && i < s->n_found; i++) {
        uint16_t narrow = (uint16_t)s->found[i];
        if (s->wide)
            memcpy(entry.ids + 4 * i, &s->found[i], 4);
        else
            memcpy(entry.ids + 2 * i, &narrow, 2);
    }
    s->shorts[at] = entry;
    s->n_shorts++;
    return 1;
}

static int remember_long(State *s, const uint8_t *folded, uint32_t length, uint64_t hash) {
    if (2 * (s->n_longs + 1) > s->long_mask && !grow_longs(s)) return 0;
    if (!grow((void **)&s->keys, &s->room_keys, s->n_keys + length, 1)) return 0;
    uint64_t at = hash & s->long_mask;
    while (s->longs[at].count) at = (at + 1) & s->long_mask;
    uint32_t value;
    if (!kept(s, &value)) return 0;
    memcpy(s->keys + s->n_keys, folded, length);
    s->longs[at] = (Long){hash, (uint32_t)s->n_keys, length, value, (uint32_t)s->n_found + 1};
    s->n_keys += length;
    s->n_longs++;
    return 1;
}

/* ---- splitting into pre-tokens ---- */

/* One bit for each of 16 bytes that are 0 or 255 */
static inline uint64_t bits_of(Lane lane) {
#ifdef __SSE2__
    return (uint16_t)__builtin_ia32_pmovmskb128((Signs)lane);
#else
    uint64_t eights[2];
    lane &= 1;
    memcpy(eights, &lane, 16);
    return (eights[0] * 0x0102040810204080u >> 56) | (eights[1] * 0x0102040810204080u >> 56) << 8;
#endif
}

/* One bit for each of 64 bytes; leads: these may begin isolated characters */
typedef struct {
    uint64_t letters, spaces, leads;
} Bits;

/* Classify 64 bytes, and lower-case those of ASCII. Subtraction wraps around, so that one unsigned
 * comparison tests both ends of a range; the first bytes of isolated characters are 0xE2 to 0xE9,
 * and 0xEF. */
static inline Bits look(const uint8_t *bytes, uint8_t *folded, int lowercase) {
    Bits bits = {0, 0, 0};
    for (int i = 0; i < 4; i++) {
        Lane x;
        memcpy(&x, bytes + 16 * i, 16);
        Lane small = (x | 0x20) - 'a' < 26, capital = x - 'A' < 26, beyond = x >= 0x80;
        bits.letters |= bits_of(small | (x - '0' < 10) | beyond) << 16 * i;
        bits.spaces |= bits_of(x <= 0x20) << 16 * i;
        bits.leads |= bits_of((x - 0xE2 < 8) | (x == 0xEF)) << 16 * i;
        if (lowercase) x |= capital & 0x20;
        memcpy(folded + 16 * i, &x, 16);
    }
    return bits;
}

/* Pre-tokens are runs of letters, digits and non-ASCII bytes, single ASCII punctuation marks, and
 * isolated characters. */
static int find_starts(State *s, const uint8_t *text, int64_t n) {
    int64_t words = n / 64 + 1;
    if (!grow((void **)&s->folded, &s->room_folded, 64 * words + SHORT_BYTES, 1) ||
        !grow((void **)&s->borders, &s->room_borders, words + 1, sizeof *s->borders) ||
        !grow((void **)&s->begins, &s->room_begins, words, sizeof *s->begins))
        return 0;
    uint64_t word_before = 0, mark_before = 0, begins_next = 0;
    for (int64_t w = 0; w < words; w++) {
        uint8_t tail[64] = {0};
        const uint8_t *bytes = text + 64 * w;
        if (n - 64 * w < 64) bytes = memcpy(tail, bytes, n - 64 * w);
        Bits found = look(bytes, s->folded + 64 * w, s->lowercase);
        /* Borders are where a run of word bytes begins or ends, and before and after every mark. A
         * shift by one compares each byte with the one before it; the last bit of each word is
         * handed on to the next. */
        uint64_t word = found.letters, mark = ~(word | found.spaces);
        uint64_t bits =
            (word ^ (word << 1 | word_before)) | mark | (mark << 1 | mark_before) | begins_next;
        begins_next = 0;
        /* Isolated characters: a border before and, three bytes on, after each, perhaps in the next
         * word. */
        for (uint64_t leads = found.leads; leads; leads &= leads - 1) {
            int i = __builtin_ctzll(leads);
            const uint8_t *at = text + 64 * w + i;
            if (n - (64 * w + i) < 3) continue;
            if (!s->isolated[(at[0] & 0x0F) << 12 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F)]) continue;
            bits |= (uint64_t)1 << i;
            if (i + 3 < 64)
                bits |= (uint64_t)1 << (i + 3);
            else
                begins_next |= (uint64_t)1 << (i + 3 - 64);
        }
        word_before = word >> 63;
        mark_before = mark >> 63;
        s->borders[w] = bits;
        s->begins[w] = bits & ~found.spaces;
    }
    /* The end of the text is a border, but no start; the word behind is read, but not used. */
    s->borders[words - 1] |= (uint64_t)1 << (n & 63);
    s->borders[words] = 0;
    return 1;
}

/* The length of the pre-token that starts at `start`. */
static inline int64_t length_at(const State *s, int64_t start) {
    /* The next border: most are among the 57 bits or more that one unaligned load yields after the
     * shift. Only longer pre-tokens search word by word. */
    uint64_t window, at = (uint64_t)start + 1;
    memcpy(&window, (const uint8_t *)s->borders + at / 8, sizeof window);
    window >>= at & 7;
    if (window) return 1 + __builtin_ctzll(window);
    uint64_t w = (at + 57) / 64, bits = s->borders[w] & ~(uint64_t)0 << ((at + 57) & 63);
    while (!bits) bits = s->borders[++w];
    return (int64_t)(64 * w) + __builtin_ctzll(bits) - start;
}

typedef struct {
    int64_t starts[BATCH], lengths[BATCH];
    uint64_t low[BATCH], high[BATCH], hashes[BATCH];
} Batch;

/* Collect up to BATCH pre-tokens from byte `p` of `n` with their keys and hashes, and prefetch
 * their slots; returns their number. */
static int gather(const State *s, int64_t n, int64_t p, Batch *batch) {
    /* A slot of a large table is a cache miss of its own. Here a batch of them is requested before
     * the first is read, so that the misses overlap. */
    int64_t words = n / 64 + 1, w = p / 64;
    uint64_t bits = s->begins[w] & ~(uint64_t)0 << (p & 63);
    for (int found = 0; found < BATCH; found++) {
        while (!bits) {
            if (++w >= words) return found;
            bits = s->begins[w];
        }
        int64_t start = 64 * w + __builtin_ctzll(bits), length = length_at(s, start);
        bits &= bits - 1;
        uint64_t key[2];
        memcpy(key, s->folded + start, sizeof key);
        const uint64_t *mask = s->masks[length < SHORT_BYTES ? length : SHORT_BYTES];
        batch->starts[found] = start;
        batch->lengths[found] = length;
        batch->low[found] = key[0] & mask[0];
        batch->high[found] = key[1] & mask[1];
        batch->hashes[found] = mixed(batch->low[found], batch->high[found]);
        __builtin_prefetch(&s->shorts[batch->hashes[found] & s->short_mask]);
    }
    return BATCH;
}

/* ---- interface ---- */

void wordpiece_close(State *s) {
    if (!s) return;
    free(s->pieces);
    free(s->spelling);
    free(s->shorts);
    free(s->longs);
    free(s->keys);
    free(s->pool);
    free(s->folded);
    free(s->borders);
    free(s->begins);
    free(s->meaning_of);
    free(s->meanings);
    free(s->found);
    free(s);
}

/* `spelling`: the concatenated pieces without ##; inner_P: whether a piece had ##. */
State *wordpiece_open(const uint8_t *isolated, const uint8_t *spelling, const int64_t *ends_P,
                      const uint8_t *inner_P, int64_t pieces, int64_t unk, int64_t max_characters,
                      int64_t max_entries, int64_t max_pool, int lowercase, int wide) {
    State *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->lowercase = lowercase;
    s->wide = wide;
    s->unk = (uint32_t)unk;
    s->slot_ids = SLOT_BYTES / (wide ? sizeof(uint32_t) : sizeof(uint16_t));
    s->max_characters = (uint32_t)max_characters;
    s->max_entries = max_entries;
    s->max_pool = max_pool;
    for (int bytes = 0; bytes <= SHORT_BYTES; bytes++) {
        s->masks[bytes][0] = bytes >= 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * bytes) - 1;
        int more = bytes > 8 ? bytes - 8 : 0;
        s->masks[bytes][1] = more >= 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * more) - 1;
    }
    memcpy(s->isolated, isolated, sizeof s->isolated);
    uint64_t slots = 1024;
    while (slots < 2 * (uint64_t)pieces) slots *= 2;
    s->piece_mask = slots - 1;
    s->short_mask = s->long_mask = (1 << 12) - 1;
    s->pieces = malloc(slots * sizeof *s->pieces);
    s->spelling = calloc((pieces ? ends_P[pieces - 1] : 0) + SHORT_BYTES, 1);
    s->shorts = short_table(s->short_mask + 1);
    s->longs = calloc(s->long_mask + 1, sizeof *s->longs);
    s->meaning_of = calloc(CODE_POINTS, sizeof *s->meaning_of);
    if (!s->pieces || !s->spelling || !s->shorts || !s->longs || !s->meaning_of) {
        wordpiece_close(s);
        return NULL;
    }
    for (uint64_t i = 0; i < slots; i++) s->pieces[i].id = -1;
    if (pieces) memcpy(s->spelling, spelling, ends_P[pieces - 1]);
    for (int64_t i = 0; i < pieces; i++) {
        uint64_t begin = i ? ends_P[i - 1] : 0, length = ends_P[i] - begin;
        if (!length || length > WORD_BYTES) continue; /* longer than any word */
        if (length > s->longest_piece) s->longest_piece = (uint32_t)length;
        const uint8_t *piece = s->spelling + begin;
        PieceKey key = piece_key(s, piece, (uint32_t)length, inner_P[i] != 0);
        uint64_t at = piece_slot(s, key);
        while (s->pieces[at].id >= 0) at = (at + 1) & s->piece_mask;
        s->sizes[inner_P[i] != 0][first_two(piece, (uint32_t)length)] |=
            1u << (length < 31 ? length : 31);
        s->pieces[at] = (Piece){key.low, key.high, key.kind, (uint32_t)begin, (int32_t)i};
    }
    return s;
}

int wordpiece_character(State *s, int64_t code, const uint8_t *meaning, int64_t length,
                        int unsafe) {
    uint64_t room = s->room_meanings;
    if (!grow((void **)&s->meanings, &room, s->n_meanings + 1, sizeof *s->meanings))
        return NO_MEMORY;
    s->room_meanings = (uint32_t)room;
    Meaning *entry = &s->meanings[s->n_meanings++];
    entry->unsafe = unsafe || length > MAX_MEANING;
    entry->length = length > MAX_MEANING ? 0 : (uint8_t)length;
    memcpy(entry->bytes, meaning, entry->length);
    s->meaning_of[code] = s->n_meanings;
    return DONE;
}

static inline int emit(const State *s, void *out, int64_t capacity, int64_t *written,
                       const uint32_t *ids, uint64_t count) {
    if ((uint64_t)(capacity - *written) < count) return 0;
    if (s->wide)
        memcpy((uint32_t *)out + *written, ids, count * sizeof *ids);
    else
        for (uint64_t i = 0; i < count; i++) ((uint16_t *)out)[*written + i] = (uint16_t)ids[i];
    *written += (int64_t)count;
    return 1;
}

/* Tokenise a pre-token that is not cached; its ids go into `found`. */
static int tokenise(State *s, const uint8_t *text, const uint8_t *folded, int64_t length,
                    int64_t *unknown) {
    uint8_t any = 0;
    for (int64_t i = 0; i < length; i++) any |= text[i];
    s->n_found = 0;
    if (any & 0x80) return put_words(s, text, length, unknown);
    if (length > s->max_characters) return put_found(s, s->unk) ? DONE : NO_MEMORY;
    return put_word(s, folded, (uint32_t)length) ? DONE : NO_MEMORY;
}

/* The entry of a key, or the free slot where it belongs. Comparing before asking whether the slot
 * is free makes the usual case a single, well predicted branch. */
static inline const Short *find_short(const State *s, uint64_t hash, uint64_t low, uint64_t high) {
    const Short *entry = &s->shorts[hash & s->short_mask];
    while (((entry->low ^ low) | (entry->high ^ high)) && entry->count)
        entry = &s->shorts[++hash & s->short_mask];
    return entry;
}

static const Long *find_long(const State *s, const uint8_t *folded, uint32_t length,
                             uint64_t hash) {
    uint64_t slot = hash & s->long_mask;
    const Long *entry = &s->longs[slot];
    while (entry->count && (entry->hash != hash || entry->length != length ||
                            memcmp(s->keys + entry->key, folded, length))) {
        slot = (slot + 1) & s->long_mask;
        entry = &s->longs[slot];
    }
    return entry;
}

/* Append the ids of a pre-token that is long, not cached, or has more ids than fit into a slot to
 * out[written]. `entry` is its slot, if it is short. */
static int learn(State *s, const uint8_t *text, const uint8_t *folded, int64_t length,
                 const Short *entry, uint64_t low, uint64_t high, void *out, int64_t capacity,
                 int64_t *written, int64_t *unknown) {
    uint64_t hash = 0;
    if (length <= SHORT_BYTES && entry->count) {
        uint32_t place;
        memcpy(&place, entry->ids, sizeof place);
        int fits = emit(s, out, capacity, written, s->pool + place, entry->count - 1);
        return fits ? DONE : NEED_ROOM;
    }
    if (length > SHORT_BYTES && length <= MAX_CACHED_BYTES) {
        hash = hash_of(folded, length);
        const Long *known = find_long(s, folded, (uint32_t)length, hash);
        if (known->count) {
            const uint32_t *ids = s->pool + known->value;
            return emit(s, out, capacity, written, ids, known->count - 1) ? DONE : NEED_ROOM;
        }
    }
    if (s->n_shorts + s->n_longs >= s->max_entries || s->n_pool >= s->max_pool ||
        s->n_keys >= s->max_pool)
        forget(s);
    int status = tokenise(s, text, folded, length, unknown);
    if (status != DONE) return status;
    if (!emit(s, out, capacity, written, s->found, s->n_found)) return NEED_ROOM;
    int fine = 1;
    if (length <= SHORT_BYTES)
        fine = remember_short(s, low, high);
    else if (length <= MAX_CACHED_BYTES)
        fine = remember_long(s, folded, (uint32_t)length, hash);
    return fine ? DONE : NO_MEMORY;
}

/* Append the ids of text[at[0]..n) to out[at[1]]. at[2]: number of ends passed; at[5]: whether the
 * starts have been found. NEED_CHARACTER asks the caller for the code point in at[3];
 * NEED_PRE_TOKEN asks it to append the ids of the pre-token with the bounds at[3] and at[4];
 * NEED_ROOM asks for more room, at least for the ids of one slot. */
int wordpiece_encode(State *s, const uint8_t *text, int64_t n, const int64_t *ends, int64_t n_ends,
                     int64_t *counts, void *out, int64_t capacity, int64_t *at) {
    int64_t p = at[0], written = at[1], passed = at[2];
    const int shift = s->wide ? 2 : 1;
    Batch batch;
    int status = DONE;
    if (!at[5] && !find_starts(s, text, n)) return NO_MEMORY;
    at[5] = 1;
    while (p < n && status == DONE) {
        int size = gather(s, n, p, &batch);
        for (int i = 0; i < size; i++) {
            p = batch.starts[i];
            while (passed < n_ends && ends[passed] <= p) counts[passed++] = written;
            if (capacity - written < SLOT_BYTES) {
                status = NEED_ROOM;
                break;
            }
            /* The hot path copies a whole slot, whatever number of its ids is valid, and advances
             * by that number: a copy of fixed size has no branch to mispredict. What it writes too
             * much is overwritten next; for that, a slot's room is demanded above. A free slot has
             * a count of 0, which less one is beyond any number of ids, so the one comparison also
             * finds what is not cached. */
            const int64_t length = batch.lengths[i];
            const Short *entry = find_short(s, batch.hashes[i], batch.low[i], batch.high[i]);
            if (__builtin_expect(length <= SHORT_BYTES && entry->count - 1 <= s->slot_ids, 1)) {
                memcpy((uint8_t *)out + (written << shift), entry->ids, SLOT_BYTES);
                written += entry->count - 1;
                continue;
            }
            status = learn(s, text + p, s->folded + p, length, entry, batch.low[i], batch.high[i],
                           out, capacity, &written, &at[3]);
            if (status == NEED_PRE_TOKEN) {
                at[3] = p;
                at[4] = p + length;
            }
            if (status != DONE) break;
        }
        if (status == DONE) p = size < BATCH ? n : p + batch.lengths[BATCH - 1];
    }
    if (status == DONE)
        while (passed < n_ends) counts[passed++] = written;
    at[0] = p;
    at[1] = written;
    at[2] = passed;
    return status;
}
