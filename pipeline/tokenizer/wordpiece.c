/* WordPiece over a block of cleaned UTF-8 text: pre-tokens are cut, looked up, and tokenised when new.

   Compiled on first use (artifacts/runtime/native.py) and called by compiled.py, which owns every buffer that
   crosses the border. What BERT's normaliser makes of a character is asked of `tokenizers` once for
   each character and kept here; a pre-token with a character whose neighbours matter goes back whole.

   A pre-token of at most 16 bytes is its own key, two zero-padded words (text holds no NUL); longer
   ones are compared in an arena. Each table is open addressing, at most half full.

   Lengths of words cannot be predicted, so nothing branches on them: where pre-tokens begin is found
   for 64 bytes at a time as bits of a word, and a batch of them is cut, then hashed and its slots
   fetched ahead, then looked up. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DONE, NEED_CHARACTER, NEED_PRE_TOKEN, NEED_ROOM, NO_MEMORY };

#define SHORT_BYTES 16
#define LONGEST_KEPT 4096
#define WORD_BYTES 512 /* of a word that is not too long: 100 characters */
#define CODE_POINTS 0x110000
#define MAX_MEANING 64
#define BATCH 128 /* pre-tokens on their way together */

typedef struct { uint64_t low, high; uint32_t value, count; } Short; /* value: the id, or where ids begin */
typedef struct { uint64_t hash; uint32_t key, length, value, count; } Long;
typedef struct { uint64_t hash; uint32_t piece, length; int32_t id; uint32_t inner; } Piece;
typedef struct { uint8_t length, unsafe, bytes[MAX_MEANING]; } Meaning;

typedef struct {
    int lowercase, wide;
    uint32_t unk, max_characters;
    uint8_t isolated[1 << 16]; /* three-byte characters that are pre-tokens by themselves */
    uint64_t masks[SHORT_BYTES + 1][2];
    uint64_t *borders, room_borders; /* a bit for each byte: here begins a pre-token or white space */
    Piece *pieces; uint64_t piece_mask; uint8_t *spelling; uint32_t longest_piece;
    uint32_t sizes[2][1 << 16]; /* by first two bytes: bit n where a piece has n bytes, the last bit for more */
    Short *shorts; uint64_t short_mask, n_shorts;
    Long *longs; uint64_t long_mask, n_longs;
    uint8_t *keys; uint64_t n_keys, room_keys;
    uint32_t *pool; uint64_t n_pool, room_pool;
    uint32_t *meaning_of; Meaning *meanings; uint32_t n_meanings, room_meanings;
    uint64_t max_entries, max_pool;
    uint32_t *found; uint64_t n_found, room_found; /* ids of the pre-token at hand */
} State;

/* ---- hashing ---- */

static inline uint64_t mixed(uint64_t low, uint64_t high) {
    uint64_t h = (low ^ (high * 0x9E3779B97F4A7C15u)) * 0xFF51AFD7ED558CCDu;
    return h ^ (h >> 32);
}

static inline uint64_t hash_step(uint64_t h, uint8_t byte) { return (h ^ byte) * 0x100000001B3u; }

static inline uint64_t hash_end(uint64_t h) { h *= 0xFF51AFD7ED558CCDu; return h ^ (h >> 32); }

static uint64_t hash_of(const uint8_t *bytes, uint64_t length) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint64_t i = 0; i < length; i++) h = hash_step(h, bytes[i]);
    return hash_end(h);
}

/* ---- growing ---- */

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

static int grow_shorts(State *s) {
    uint64_t slots = 2 * (s->short_mask + 1);
    Short *table = calloc(slots, sizeof *table);
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

static void forget(State *s) {
    memset(s->shorts, 0, (s->short_mask + 1) * sizeof *s->shorts);
    memset(s->longs, 0, (s->long_mask + 1) * sizeof *s->longs);
    s->n_shorts = s->n_longs = s->n_keys = s->n_pool = 0;
}

/* ---- word-pieces ---- */

static int32_t piece_id(const State *s, uint64_t hash, const uint8_t *bytes, uint32_t length, uint32_t inner) {
    for (uint64_t at = (hash + inner) & s->piece_mask;; at = (at + 1) & s->piece_mask) {
        const Piece *piece = &s->pieces[at];
        if (piece->id < 0) return -1;
        if (piece->hash == hash && piece->length == length && piece->inner == inner
            && !memcmp(s->spelling + piece->piece, bytes, length)) return piece->id;
    }
}

static inline uint32_t first_two(const uint8_t *bytes, uint32_t length) {
    return bytes[0] | (length > 1 ? (uint32_t)bytes[1] << 8 : 0);
}

static int put_found(State *s, uint32_t id) {
    if (!grow((void **)&s->found, &s->room_found, s->n_found + 1, sizeof *s->found)) return 0;
    s->found[s->n_found++] = id;
    return 1;
}

/* Longest match first (reference: tokenization.py:300-359); a word that cannot be spelt is [UNK]. */
static int put_word(State *s, const uint8_t *word, uint32_t length) {
    uint64_t begin = s->n_found, hashes[WORD_BYTES + 1];
    for (uint32_t start = 0; start < length;) {
        uint32_t most = length - start < s->longest_piece ? length - start : s->longest_piece;
        uint64_t h = 0xCBF29CE484222325u;
        const uint32_t *sizes = s->sizes[start > 0];
        uint32_t one = sizes[first_two(word + start, 1)], several = most > 1 ? sizes[first_two(word + start, 2)] : 0;
        for (uint32_t size = 1; size <= most; size++) {
            h = hash_step(h, word[start + size - 1]);
            hashes[size] = hash_end(h);
            if ((size > 1 ? several : one) >> (size < 31 ? size : 31) & 1)
                __builtin_prefetch(&s->pieces[(hashes[size] + (start > 0)) & s->piece_mask]);
        }
        uint32_t size = most;
        int32_t id = -1;
        for (; size > 0; size--) {
            if (!((size > 1 ? several : one) >> (size < 31 ? size : 31) & 1)) continue;
            if (start + size < length && (word[start + size] & 0xC0) == 0x80) continue; /* inside a character */
            id = piece_id(s, hashes[size], word + start, size, start > 0);
            if (id >= 0) break;
        }
        if (id < 0) {
            s->n_found = begin;
            return put_found(s, s->unk);
        }
        if (!put_found(s, (uint32_t)id)) return 0;
        start += size;
    }
    return 1;
}

static int put_words_of_ascii(State *s, const uint8_t *text, uint64_t length) {
    if (length > s->max_characters) return put_found(s, s->unk);
    uint8_t word[WORD_BYTES];
    for (uint64_t i = 0; i < length; i++)
        word[i] = s->lowercase && text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i];
    return put_word(s, word, (uint32_t)length);
}

/* One character of UTF-8; a byte that begins none is U+FFFD, so that nothing is read beyond the text. */
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
    if (value < least[size] || value >= CODE_POINTS || (value >= 0xD800 && value < 0xE000)) return 1;
    *code = value;
    return size;
}

static int end_word(State *s, const uint8_t *word, uint32_t *bytes, uint32_t *characters) {
    int fine = !*characters ? 1 : *characters > s->max_characters ? put_found(s, s->unk) : put_word(s, word, *bytes);
    *bytes = *characters = 0;
    return fine;
}

/* The pieces of a pre-token with characters beyond ASCII, each replaced by its meaning. */
static int put_words(State *s, const uint8_t *text, uint64_t length, int64_t *unknown) {
    uint8_t word[WORD_BYTES];
    uint32_t bytes = 0, characters = 0, code, size;
    for (uint64_t at = 0; at < length; at += size) {
        size = decode(text + at, length - at, &code);
        if (!s->meaning_of[code]) { *unknown = code; return NEED_CHARACTER; }
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
            if (bytes < WORD_BYTES) word[bytes++] = byte; /* what does not fit is too long anyway */
        }
    }
    return end_word(s, word, &bytes, &characters) ? DONE : NO_MEMORY;
}

/* ---- the memory of pre-tokens ---- */

static int kept(State *s, uint32_t *value) { /* where the ids at hand stand from now on */
    if (s->n_found == 1) { *value = s->found[0]; return 1; }
    if (!grow((void **)&s->pool, &s->room_pool, s->n_pool + s->n_found, sizeof *s->pool)) return 0;
    memcpy(s->pool + s->n_pool, s->found, s->n_found * sizeof *s->pool);
    *value = (uint32_t)s->n_pool;
    s->n_pool += s->n_found;
    return 1;
}

/* `count` is stored one higher, so that 0 means a free slot and no ids at all can be remembered. */
static int remember_short(State *s, uint64_t low, uint64_t high) {
    if (2 * (s->n_shorts + 1) > s->short_mask && !grow_shorts(s)) return 0;
    uint64_t at = mixed(low, high) & s->short_mask;
    while (s->shorts[at].count) at = (at + 1) & s->short_mask;
    uint32_t value;
    if (!kept(s, &value)) return 0;
    s->shorts[at] = (Short){low, high, value, (uint32_t)s->n_found + 1};
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

static inline uint64_t lower8(uint64_t x) { /* ASCII capitals of eight bytes, made small */
    uint64_t low = x & 0x7F7F7F7F7F7F7F7Fu;
    uint64_t from_a = low + 0x3F3F3F3F3F3F3F3Fu, beyond_z = low + 0x2525252525252525u;
    return x | ((from_a & ~beyond_z & ~x & 0x8080808080808080u) >> 2);
}

static inline void load16(const State *s, const uint8_t *text, int64_t left, int64_t length, uint64_t *low, uint64_t *high) {
    uint64_t words[2] = {0, 0};
    const uint64_t *mask = s->masks[length < SHORT_BYTES ? length : SHORT_BYTES];
    memcpy(words, text, left < SHORT_BYTES ? (size_t)left : SHORT_BYTES);
    *low = words[0] & mask[0];
    *high = words[1] & mask[1];
    if (s->lowercase) { *low = lower8(*low); *high = lower8(*high); }
}

/* ---- where pre-tokens begin ---- */

static inline uint64_t gathered(const uint8_t *flags) { /* 64 bytes of 0 or 1 as the bits of a word */
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t eight;
        memcpy(&eight, flags + 8 * i, 8);
        bits |= (eight * 0x0102040810204080u >> 56) << 8 * i;
    }
    return bits;
}

static inline int is_lead(uint8_t byte) { return ((uint8_t)(byte - 0xE2) < 8) | (byte == 0xEF); }

/* Runs of letters, digits and non-ASCII bytes; every ASCII mark and isolated character by itself. */
static int find_borders(State *s, const uint8_t *text, int64_t n) {
    int64_t words = n / 64 + 1;
    if (!grow((void **)&s->borders, &s->room_borders, words, sizeof *s->borders)) return 0;
    uint64_t word_before = 0, mark_before = 0, begins_next = 0;
    for (int64_t w = 0; w < words; w++) {
        uint8_t bytes[64] = {0}, in_word[64], is_mark[64], leads = 0;
        int64_t here = n - 64 * w < 64 ? n - 64 * w : 64;
        memcpy(bytes, text + 64 * w, here);
        for (int i = 0; i < 64; i++) {
            uint8_t byte = bytes[i];
            uint8_t letter = ((uint8_t)((byte | 0x20) - 'a') < 26) | ((uint8_t)(byte - '0') < 10) | (byte >> 7);
            in_word[i] = letter;
            is_mark[i] = (byte > 0x20) & (letter ^ 1);
            leads |= is_lead(byte);
        }
        uint64_t word = gathered(in_word), mark = gathered(is_mark);
        uint64_t bits = (word ^ (word << 1 | word_before)) | mark | (mark << 1 | mark_before) | begins_next;
        begins_next = 0;
        if (leads) for (int i = 0; i < here; i++) {
            const uint8_t *at = text + 64 * w + i;
            if (!is_lead(*at) || n - (64 * w + i) < 3) continue;
            if (!s->isolated[(at[0] & 0x0F) << 12 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F)]) continue;
            bits |= (uint64_t)1 << i;
            if (i + 3 < 64) bits |= (uint64_t)1 << (i + 3);
            else begins_next |= (uint64_t)1 << (i + 3 - 64);
        }
        word_before = word >> 63;
        mark_before = mark >> 63;
        s->borders[w] = bits;
    }
    s->borders[words - 1] |= (uint64_t)1 << (n & 63); /* the end is a border */
    return 1;
}

/* Up to BATCH pre-tokens from byte `p` on; returns how many, and in `next` where to go on. */
static int cut(const State *s, const uint8_t *text, int64_t n, int64_t p, int64_t *starts, int64_t *lengths, int64_t *next) {
    int found = 0;
    int64_t begin = p, w = p / 64;
    uint64_t bits = s->borders[w] & ~(uint64_t)0 << (p & 63) << 1; /* borders behind p */
    while (begin < n && found < BATCH) {
        while (!bits) bits = s->borders[++w];
        int64_t end = 64 * w + __builtin_ctzll(bits);
        bits &= bits - 1;
        starts[found] = begin;
        lengths[found] = end - begin;
        found += text[begin] > 0x20;
        begin = end;
    }
    *next = begin;
    return found;
}

/* ---- the face ---- */

void wordpiece_close(State *s) {
    if (!s) return;
    free(s->pieces); free(s->spelling); free(s->shorts); free(s->longs); free(s->keys); free(s->pool);
    free(s->borders); free(s->meaning_of); free(s->meanings); free(s->found); free(s);
}

/* `spelling`: all pieces one after another, without their ##; inner_P: whether they had one. */
State *wordpiece_open(const uint8_t *isolated, const uint8_t *spelling, const int64_t *ends_P,
                      const uint8_t *inner_P, int64_t pieces, int64_t unk, int64_t max_characters,
                      int64_t max_entries, int64_t max_pool, int lowercase, int wide) {
    State *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->lowercase = lowercase; s->wide = wide; s->unk = (uint32_t)unk;
    s->max_characters = (uint32_t)max_characters; s->max_entries = max_entries; s->max_pool = max_pool;
    for (int bytes = 0; bytes <= SHORT_BYTES; bytes++) {
        s->masks[bytes][0] = bytes >= 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * bytes) - 1;
        s->masks[bytes][1] = bytes == 16 ? ~(uint64_t)0 : bytes <= 8 ? 0 : ((uint64_t)1 << 8 * (bytes - 8)) - 1;
    }
    memcpy(s->isolated, isolated, sizeof s->isolated);
    uint64_t slots = 1024;
    while (slots < 4 * (uint64_t)pieces) slots *= 2;
    s->piece_mask = slots - 1;
    s->short_mask = s->long_mask = (1 << 12) - 1;
    s->pieces = malloc(slots * sizeof *s->pieces);
    s->spelling = malloc(pieces ? ends_P[pieces - 1] + 1 : 1);
    s->shorts = calloc(s->short_mask + 1, sizeof *s->shorts);
    s->longs = calloc(s->long_mask + 1, sizeof *s->longs);
    s->meaning_of = calloc(CODE_POINTS, sizeof *s->meaning_of);
    if (!s->pieces || !s->spelling || !s->shorts || !s->longs || !s->meaning_of) { wordpiece_close(s); return NULL; }
    for (uint64_t i = 0; i < slots; i++) s->pieces[i].id = -1;
    if (pieces) memcpy(s->spelling, spelling, ends_P[pieces - 1]);
    for (int64_t i = 0; i < pieces; i++) {
        uint64_t begin = i ? ends_P[i - 1] : 0, length = ends_P[i] - begin;
        if (!length || length > WORD_BYTES) continue; /* no word is as long */
        if (length > s->longest_piece) s->longest_piece = (uint32_t)length;
        uint64_t hash = hash_of(s->spelling + begin, length), at = (hash + inner_P[i]) & s->piece_mask;
        while (s->pieces[at].id >= 0) at = (at + 1) & s->piece_mask;
        s->sizes[inner_P[i] != 0][first_two(s->spelling + begin, (uint32_t)length)] |= 1u << (length < 31 ? length : 31);
        s->pieces[at] = (Piece){hash, (uint32_t)begin, (uint32_t)length, (int32_t)i, inner_P[i]};
    }
    return s;
}

int wordpiece_character(State *s, int64_t code, const uint8_t *meaning, int64_t length, int unsafe) {
    uint64_t room = s->room_meanings;
    if (!grow((void **)&s->meanings, &room, s->n_meanings + 1, sizeof *s->meanings)) return NO_MEMORY;
    s->room_meanings = (uint32_t)room;
    Meaning *entry = &s->meanings[s->n_meanings++];
    entry->unsafe = unsafe || length > MAX_MEANING;
    entry->length = length > MAX_MEANING ? 0 : (uint8_t)length;
    memcpy(entry->bytes, meaning, entry->length);
    s->meaning_of[code] = s->n_meanings;
    return DONE;
}

static inline int emit(const State *s, void *out, int64_t capacity, int64_t *written, const uint32_t *ids, uint64_t count) {
    if ((uint64_t)(capacity - *written) < count) return 0;
    if (s->wide) memcpy((uint32_t *)out + *written, ids, count * sizeof *ids);
    else for (uint64_t i = 0; i < count; i++) ((uint16_t *)out)[*written + i] = (uint16_t)ids[i];
    *written += (int64_t)count;
    return 1;
}

/* The ids of a pre-token that is not remembered, into `found`. */
static int tokenise(State *s, const uint8_t *text, int64_t length, int64_t *unknown) {
    uint8_t any = 0;
    for (int64_t i = 0; i < length; i++) any |= text[i];
    s->n_found = 0;
    if (any & 0x80) return put_words(s, text, length, unknown);
    return put_words_of_ascii(s, text, length) ? DONE : NO_MEMORY;
}

static const Short *find_short(const State *s, uint64_t hash, uint64_t low, uint64_t high) {
    uint64_t slot = hash & s->short_mask;
    const Short *entry = &s->shorts[slot];
    while (entry->count && (entry->low != low || entry->high != high)) {
        slot = (slot + 1) & s->short_mask;
        entry = &s->shorts[slot];
    }
    return entry;
}

static const Long *find_long(const State *s, const uint8_t *folded, uint32_t length, uint64_t hash) {
    uint64_t slot = hash & s->long_mask;
    const Long *entry = &s->longs[slot];
    while (entry->count && (entry->hash != hash || entry->length != length || memcmp(s->keys + entry->key, folded, length))) {
        slot = (slot + 1) & s->long_mask;
        entry = &s->longs[slot];
    }
    return entry;
}

/* One pre-token that is long or not remembered; its ids come behind out[written]. */
static int learn(State *s, const uint8_t *text, int64_t length, uint64_t low, uint64_t high,
                 void *out, int64_t capacity, int64_t *written, int64_t *unknown) {
    uint8_t folded[LONGEST_KEPT];
    uint64_t hash = 0;
    if (length > SHORT_BYTES && length <= LONGEST_KEPT) {
        for (int64_t i = 0; i < length; i++)
            folded[i] = s->lowercase && text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i];
        hash = hash_of(folded, length);
        const Long *entry = find_long(s, folded, (uint32_t)length, hash);
        uint32_t count = entry->count - 1;
        if (entry->count)
            return emit(s, out, capacity, written, count == 1 ? &entry->value : s->pool + entry->value, count) ? DONE : NEED_ROOM;
    }
    if (s->n_shorts + s->n_longs >= s->max_entries || s->n_pool >= s->max_pool || s->n_keys >= s->max_pool) forget(s);
    int status = tokenise(s, text, length, unknown);
    if (status != DONE) return status;
    if (!emit(s, out, capacity, written, s->found, s->n_found)) return NEED_ROOM;
    if (length <= SHORT_BYTES) return remember_short(s, low, high) ? DONE : NO_MEMORY;
    return length > LONGEST_KEPT || remember_long(s, folded, (uint32_t)length, hash) ? DONE : NO_MEMORY;
}

/* Ids of text[at[0]..n) behind out[at[1]); at[2]: ends passed so far; at[5]: borders are found. When
   the caller is needed, at[3] holds a code point, or at[3..4] the bounds of a pre-token whose ids the
   caller shall put. Capacity is at least BATCH more than what is written, or room is asked for. */
int wordpiece_encode(State *s, const uint8_t *text, int64_t n, const int64_t *ends, int64_t n_ends, int64_t *counts,
                     void *out, int64_t capacity, int64_t *at) {
    int64_t p = at[0], written = at[1], passed = at[2], next, starts[BATCH + 1], lengths[BATCH + 1];
    uint64_t low[BATCH], high[BATCH], hashes[BATCH];
    uint16_t *narrow = out;
    uint32_t *wide = out;
    int status = DONE;
    if (!at[5] && !find_borders(s, text, n)) return NO_MEMORY;
    at[5] = 1;
    while (p < n && status == DONE) {
        int batch = cut(s, text, n, p, starts, lengths, &next);
        for (int i = 0; i < batch; i++) {
            load16(s, text + starts[i], n - starts[i], lengths[i], &low[i], &high[i]);
            hashes[i] = mixed(low[i], high[i]);
            __builtin_prefetch(&s->shorts[hashes[i] & s->short_mask]);
        }
        for (int i = 0; i < batch; i++) {
            p = starts[i];
            while (passed < n_ends && ends[passed] <= p) counts[passed++] = written;
            const Short *entry = find_short(s, hashes[i], low[i], high[i]);
            if (capacity - written < BATCH) { status = NEED_ROOM; break; }
            if (lengths[i] <= SHORT_BYTES && entry->count == 2) {
                if (s->wide) wide[written++] = entry->value;
                else narrow[written++] = (uint16_t)entry->value;
            } else if (lengths[i] <= SHORT_BYTES && entry->count) {
                if (!emit(s, out, capacity, &written, s->pool + entry->value, entry->count - 1)) { status = NEED_ROOM; break; }
            } else {
                status = learn(s, text + p, lengths[i], low[i], high[i], out, capacity, &written, &at[3]);
                if (status == NEED_PRE_TOKEN) { at[3] = p; at[4] = p + lengths[i]; }
                if (status != DONE) break;
            }
        }
        if (status == DONE) p = next;
    }
    if (status == DONE) while (passed < n_ends) counts[passed++] = written;
    at[0] = p; at[1] = written; at[2] = passed;
    return status;
}
