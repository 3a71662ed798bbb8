/* Counts over the words and lines of documents: what the rules of Gopher, C4 and FineWeb ask for.

   Called by words.py, which owns the buffers and says in Python, line by line, what is counted here.
   A document is decoded once into the class of each character, cut into words, and these are
   hashed; n-grams are compared by their hashes, those of n + 1 words only where the n words that
   they begin with recur. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "short words are compared as little-endian numbers"
#endif

/* classes of characters; words.py fills the table */
#define LOWER 1
#define UPPER 2 /* letters without case are both */
#define DIGIT 4
#define EITHER_END 8 /* cut off where a run of characters begins or ends */
#define BEGIN_ONLY 16
#define QUOTE 32
#define HYPHEN 64
#define ICON 128
#define MARK 256 /* belongs to the character before it */
#define PUNCTUATION 512
#define IDEOGRAPH 1024
#define COMPLEX 2048
#define TERMINAL 4096
#define LETTER (LOWER | UPPER)
#define ALONE (IDEOGRAPH | COMPLEX)

#define UNITS 6 /* of a word */
#define CODES 0x33480
#define TOP_FROM 2
#define DUPLICATE_FROM 5
#define LAST 10
#define WORD_MEASURES 14
#define LINE_MEASURES 6
#define NO_MEMORY (-1)

typedef struct {
    uint64_t hash;
    int32_t count, first, seen;
} Slot;

typedef struct {
    const uint8_t *text;
    const uint16_t *classes;
    /* of the characters: class, ASCII code (' for the right single quotation mark, 0 for others),
       first byte */
    uint16_t *kinds;
    uint8_t *codes;
    int32_t *begins;
    int32_t *stack; /* of the words at the end of a run, last one first */
    /* of the words: sums before each */
    uint64_t *hashes;
    int64_t *units, *lengths;
    int32_t *windows, *places;
    Slot *slots;
    int64_t words, *out;
    unsigned stop_words; /* a bit for each that was seen */
} State;

static inline uint64_t scrambled(uint64_t h) {
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    return h;
}

static uint64_t hash_of(const uint8_t *bytes, int64_t length) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ (uint64_t)length;
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t part;
        memcpy(&part, bytes, 8);
        h = (h ^ part) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 29;
    }
    uint64_t part = 0;
    memcpy(&part, bytes, length);
    return scrambled((h ^ part) * 0xFF51AFD7ED558CCDu);
}

/* Decode text[begin..end) of valid UTF-8 into the arrays of characters; returns their number. */
static int32_t decoded(State *s, int64_t begin, int64_t end) {
    int32_t n = 0;
    for (int64_t p = begin; p < end;) {
        uint8_t lead = s->text[p];
        s->begins[n] = (int32_t)(p - begin);
        if (lead < 0x80) {
            s->codes[n] = lead;
            s->kinds[n++] = s->classes[lead];
            p++;
            continue;
        }
        int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        uint32_t code = lead & (0x7F >> size);
        for (int i = 1; i < size; i++) code = code << 6 | (s->text[p + i] & 0x3F);
        s->codes[n] = code == 0x2019 ? '\'' : 0;
        s->kinds[n++] = code < CODES ? s->classes[code] : 0;
        p += size;
    }
    s->begins[n] = (int32_t)(end - begin);
    return n;
}

/* The bit of a stop word of Gopher's list, in any case; 0 for other words. */
static unsigned stop_word(const uint8_t *codes, int32_t length) {
    static const char stop_words[][5] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    uint32_t word = 0, known;
    if (length < 2 || length > 4) return 0;
    memcpy(&word, codes, length);
    word |= 0x20202020u >> 8 * (4 - length);
    for (int i = 0; i < 8; i++) {
        memcpy(&known, stop_words[i], 4);
        if (word == known) return 1u << i;
    }
    return 0;
}

/* Add the word of the characters [a, b). */
static void add_word(State *s, const uint8_t *text, int32_t a, int32_t b) {
    int is_word = 0, has_letter = 0;
    for (int32_t i = a; i < b; i++) {
        is_word |= !(s->kinds[i] & PUNCTUATION);
        has_letter |= s->kinds[i] & LETTER;
    }
    int units = s->kinds[a] & IDEOGRAPH ? 3 : s->kinds[a] & COMPLEX ? 2 : UNITS;
    int64_t w = s->words++;
    uint64_t hash = hash_of(text + s->begins[a], s->begins[b] - s->begins[a]);
    s->hashes[w + 1] = s->hashes[w] * 0x9E3779B97F4A7C15u + hash;
    s->units[w + 1] = s->units[w] + units;
    s->lengths[w + 1] = s->lengths[w] + (b - a);
    s->out[0] += units;
    s->stop_words |= stop_word(s->codes + a, b - a);
    if (is_word) s->out[1] += units, s->out[3] += b - a;
    if (has_letter) s->out[2] += units;
}

static inline int is_any(uint8_t code, const char *of) { return code && strchr(of, code) != NULL; }

static int32_t dots(const State *s, int32_t a, int32_t b) {
    int32_t i = a;
    while (i < b && s->codes[i] == '.') i++;
    return i - a;
}

/* How many characters at the beginning of [a, b) are a word of their own. */
static int32_t prefix(const State *s, int32_t a, int32_t b) {
    int32_t run = dots(s, a, b);
    if (run > 1) return run;
    if (s->kinds[a] & (EITHER_END | BEGIN_ONLY)) return 1;
    return s->codes[a] == '+' && !(a + 1 < b && s->kinds[a + 1] & DIGIT);
}

static int is_unit(const State *s, int32_t a, int32_t b) {
    static const char *units[] = {"km", "m", "dm", "cm", "mm", "ha", "nm", "yd", "in", "ft", "kg", "g", "mg", "t", "lb", "oz", "m/s", "km/h", "kmh", "mph", "hPa", "Pa", "mbar", "mb", "MB", "kb", "KB", "gb", "GB", "tb", "TB", "T", "G", "M", "K", "%"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        if ((int32_t)strlen(units[u]) == b - a && !memcmp(units[u], s->codes + a, b - a)) return 1;
    return 0;
}

/* How many characters at the end of [a, b) are a word of their own. */
static int32_t suffix(const State *s, int32_t a, int32_t b) {
    int32_t run = 0;
    while (run < b - a && s->codes[b - 1 - run] == '.') run++;
    if (run > 1) return run;
    uint8_t code = s->codes[b - 1];
    uint16_t before = b - 1 > a ? s->kinds[b - 2] : 0;
    if (b - a > 1 && (code | 0x20) == 's' && s->codes[b - 2] == '\'') return 2;
    if (s->kinds[b - 1] & EITHER_END) return 1;
    if (b - a > 1 && before & DIGIT && (code == '+' || (s->kinds[b - 1] & BEGIN_ONLY && code != '=')))
        return 1;
    for (int32_t size = 4; size; size--)
        if (b - a > size && s->kinds[b - size - 1] & DIGIT && is_unit(s, b - size, b)) return size;
    if (code != '.' || b - a < 2) return 0;
    if (before & (DIGIT | EITHER_END | QUOTE) || is_any(s->codes[b - 2], "%-+")) return 1;
    if ((before & LETTER) != UPPER) return (before & LETTER) != 0;
    return b - a > 2 && s->kinds[b - 3] & UPPER;
}

/* Whether [a, b) is an abbreviation with its full stop. */
static int is_abbreviation(const State *s, int32_t a, int32_t b) {
    static const char *known[] = {"Mr.", "Mrs.", "Ms.", "Dr.", "St.", "Mt.", "Rev.", "Gen.", "Gov.", "Sen.", "Rep.", "Adm.", "Prof.", "Inc.", "Co.", "co.", "Corp.", "Ltd.", "Jr.", "Bros.", "vs.", "i.e.", "e.g.", "a.m.", "p.m.", "Jan.", "Feb.", "Mar.", "Apr.", "Jun.", "Jul.", "Aug.", "Sep.", "Sept.", "Oct.", "Nov.", "Dec."};
    if (s->codes[b - 1] != '.' || b - a > 5) return 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if ((int32_t)strlen(known[k]) == b - a && !memcmp(known[k], s->codes + a, b - a)) return 1;
    return 0;
}

/* Where a contraction like 'll or n't begins at the end of [a, b); b if there is none. */
static int32_t contraction(const State *s, int32_t a, int32_t b) {
    const uint8_t *c = s->codes;
    if (b - a == 6 && (!memcmp(c + a, "cannot", 6) || !memcmp(c + a, "Cannot", 6))) return b - 3;
    if (b - a > 3 && s->kinds[b - 4] & LETTER) {
        uint8_t one = c[b - 3] | 0x20, two = c[b - 2] | 0x20, three = c[b - 1] | 0x20;
        if (one == 'n' && c[b - 2] == '\'' && three == 't') return b - 3;
        if (c[b - 3] == '\'' && ((two == 'r' && three == 'e') || (two == 'v' && three == 'e') || (two == 'l' && three == 'l')))
            return b - 3;
    }
    if (b - a > 2 && s->kinds[b - 3] & LETTER && c[b - 2] == '\'' && ((c[b - 1] | 0x20) == 'd' || (c[b - 1] | 0x20) == 'm'))
        return b - 2;
    return b;
}

static int is_address(const State *s, int32_t a, int32_t b) {
    if (b - a > 4 && !memcmp(s->codes + a, "www.", 4)) return 1;
    int32_t i = a;
    while (i < b && s->kinds[i] & LETTER) i++;
    if (i > a && b - i > 3 && !memcmp(s->codes + i, "://", 3)) return 1;
    for (i = a + 1; i + 2 < b; i++)
        if (s->codes[i] == '@') return 1;
    return 0;
}

/* How many characters at i, inside [a, b), are a word between two others. */
static int32_t infix(const State *s, int32_t a, int32_t i, int32_t b) {
    uint8_t code = s->codes[i];
    uint16_t kind = s->kinds[i];
    if (kind & ICON) return 1;
    if (kind & ALONE) {
        int32_t end = i + 1;
        while (end < b && s->kinds[end] & MARK) end++;
        return end - i;
    }
    if (code == '.' && dots(s, i, b) > 1) return dots(s, i, b);
    if (i == a || i + 1 >= b) return 0;
    uint16_t left = s->kinds[i - 1], right = s->kinds[i + 1];
    if (is_any(code, "+-*^") && left & DIGIT && (right & DIGIT || s->codes[i + 1] == '-')) return 1;
    if (code == '.') return left & (LOWER | QUOTE) && right & (UPPER | QUOTE);
    if (code == ',') return left & LETTER && right & LETTER;
    if (kind & HYPHEN && left & (LETTER | DIGIT)) {
        int32_t run = 1;
        while (code == '-' && run < 3 && i + run < b && s->codes[i + run] == '-') run++;
        return i + run < b && s->kinds[i + run] & LETTER ? run : 0;
    }
    return is_any(code, ":<>=/") && left & (LETTER | DIGIT) && right & LETTER;
}

/* Whether there are only letters with case in [a, b), as in most words. */
static int is_plain(const State *s, int32_t a, int32_t b) {
    uint16_t kinds = 0;
    for (int32_t i = a; i < b; i++) kinds |= s->kinds[i];
    return !(kinds & ~LETTER);
}

/* Cut a run of characters without white space, [a, b), into words. */
static void cut(State *s, const uint8_t *text, int32_t a, int32_t b) {
    int32_t size, waiting = 0;
    while (a < b && (size = prefix(s, a, b))) add_word(s, text, a, a + size), a += size;
    while (a < b && !is_abbreviation(s, a, b) && (size = suffix(s, a, b))) s->stack[waiting++] = b, b -= size;
    if (a < b) {
        int32_t middle = contraction(s, a, b), start = a;
        if (!is_plain(s, a, b) && !is_address(s, a, b))
            for (int32_t i = a; i < middle;) {
                size = infix(s, a, i, middle);
                if (!size || (i == start && !(s->kinds[i] & ALONE))) {
                    i++;
                    continue;
                }
                if (i > start) add_word(s, text, start, i);
                add_word(s, text, i, i + size);
                start = i += size;
            }
        if (start < middle) add_word(s, text, start, middle);
        if (middle < b) add_word(s, text, middle, b);
    }
    for (; waiting; waiting--) {
        int32_t end = s->stack[waiting - 1];
        add_word(s, text, b, end), b = end;
    }
}

/* The slot of a hash among `mask` + 1, which is empty (count 0) if it is new. */
static inline int64_t slot_of(const Slot *slots, int64_t mask, uint64_t hash) {
    int64_t at = hash & mask;
    while (slots[at].count && slots[at].hash != hash) at = (at + 1) & mask;
    return at;
}

static int64_t table_for(Slot *slots, int64_t count) {
    int64_t size = 4;
    while (size < 2 * count) size *= 2;
    memset(slots, 0, size * sizeof *slots);
    return size - 1;
}

static void measure_n_grams(State *s) {
    int64_t words = s->words, count = words;
    int32_t *window = s->windows;
    for (int64_t w = 0; w < words; w++) window[w] = (int32_t)w;
    for (int n = TOP_FROM; n <= LAST; n++) {
        /* windows that are whole, with the word after each */
        int64_t whole = 0, stop = 0;
        uint64_t powers[UNITS / 2 * LAST + 1];
        powers[0] = 1;
        for (int p = 1; p <= UNITS / 2 * LAST; p++) powers[p] = powers[p - 1] * 0x9E3779B97F4A7C15u;
        int64_t mask = table_for(s->slots, count), best = -1;
        for (int64_t k = 0; k < count; k++) {
            int64_t w = window[k];
            if (stop < w) stop = w;
            while (stop < words && s->units[stop] - s->units[w] < UNITS * n) stop++;
            if (s->units[stop] - s->units[w] < UNITS * n) break;
            uint64_t hash = scrambled(s->hashes[stop] - s->hashes[w] * powers[stop - w]);
            int64_t at = slot_of(s->slots, mask, hash);
            Slot *slot = s->slots + at;
            if (!slot->count) slot->hash = hash, slot->first = (int32_t)w;
            slot->count++;
            if (best < 0 || slot->count > s->slots[best].count ||
                (slot->count == s->slots[best].count && slot->first < s->slots[best].first))
                best = at;
            window[whole] = (int32_t)w;
            s->places[whole++] = (int32_t)at;
        }
        if (n < DUPLICATE_FROM) {
            /* all different, or none compared: the first one is the most frequent */
            int64_t first = best < 0 || s->slots[best].count == 1 ? 0 : s->slots[best].first, end = first;
            while (end < words && s->units[end] - s->units[first] < UNITS * n) end++;
            if (s->units[end] - s->units[first] >= UNITS * n) {
                int64_t times = best < 0 ? 1 : s->slots[best].count;
                s->out[4 + n - TOP_FROM] = times * (s->lengths[end] - s->lengths[first] + end - first - 1);
            }
        }
        int64_t again = 0, next = 0, end = 0;
        for (int64_t k = 0; k < whole; k++) {
            int64_t w = window[k];
            Slot *slot = s->slots + s->places[k];
            if (slot->count < 2) continue;
            window[again++] = (int32_t)w;
            if (n < DUPLICATE_FROM || w < next) continue;
            if (slot->seen) {
                if (end < w) end = w;
                while (s->units[end] - s->units[w] < UNITS * n) end++;
                s->out[7 + n - DUPLICATE_FROM] += s->lengths[end] - s->lengths[w];
                next = end;
            }
            slot->seen = 1;
        }
        count = again;
    }
}

static int64_t longest(const int64_t *ends_D, int64_t documents) {
    int64_t most = 0;
    for (int64_t d = 0; d < documents; d++) {
        int64_t size = ends_D[d] - (d ? ends_D[d - 1] : 0);
        if (size > most) most = size;
    }
    return most;
}

/* Fills measures_DM, (documents, WORD_MEASURES); returns 0, or NO_MEMORY. */
int64_t measure_words(const uint8_t *text, const int64_t *ends_D, int64_t documents, const uint16_t *classes, int n_grams, int64_t *measures_DM) {
    int64_t most = longest(ends_D, documents) + 1, size = 4;
    while (size < 2 * most) size *= 2;
    /* the arrays, one behind the other, the widest first */
    char *room = malloc((size_t)(size * sizeof(Slot) + (most + 1) * (8 * 3 + 4 * 4 + 2 + 1)));
    if (!room) return NO_MEMORY;
    State s = {.text = text, .classes = classes};
    s.slots = (Slot *)room;
    s.hashes = (uint64_t *)(s.slots + size);
    s.units = (int64_t *)(s.hashes + most + 1);
    s.lengths = s.units + most + 1;
    s.begins = (int32_t *)(s.lengths + most + 1);
    s.stack = s.begins + most + 1;
    s.windows = s.stack + most + 1;
    s.places = s.windows + most + 1;
    s.kinds = (uint16_t *)(s.places + most + 1);
    s.codes = (uint8_t *)(s.kinds + most + 1);
    memset(measures_DM, 0, documents * WORD_MEASURES * sizeof *measures_DM);
    for (int64_t d = 0, begin = 0; d < documents; begin = ends_D[d++]) {
        int32_t n = decoded(&s, begin, ends_D[d]), start = 0;
        s.words = 0, s.stop_words = 0;
        s.out = measures_DM + d * WORD_MEASURES;
        s.hashes[0] = 0, s.units[0] = s.lengths[0] = 0;
        for (int32_t i = 0; i <= n; i++)
            if (i == n || s.codes[i] == ' ' || s.codes[i] == '\n') {
                if (i > start) cut(&s, text + begin, start, i);
                start = i + 1;
            }
        if (n_grams) measure_n_grams(&s);
        for (int m = 0; m < 3; m++) s.out[m] /= UNITS;
        s.out[WORD_MEASURES - 1] = __builtin_popcount(s.stop_words);
    }
    free(room);
    return 0;
}

/* Fills measures_DM, (documents, LINE_MEASURES); returns 0, or NO_MEMORY. */
int64_t measure_lines(const uint8_t *text, const int64_t *ends_D, int64_t documents, const uint16_t *classes, int64_t short_characters, int64_t *measures_DM) {
    int64_t most = 0, size = 4;
    for (int64_t d = 0, p = 0; d < documents; d++) {
        int64_t lines = 0;
        for (; p < ends_D[d]; p++) lines += text[p] == '\n';
        if (lines > most) most = lines;
    }
    while (size < 2 * most) size *= 2;
    Slot *slots = malloc((size_t)size * sizeof *slots);
    if (!slots) return NO_MEMORY;
    memset(measures_DM, 0, documents * LINE_MEASURES * sizeof *measures_DM);
    for (int64_t d = 0, p = 0; d < documents; d++) {
        int64_t *out = measures_DM + d * LINE_MEASURES, lines = 0;
        for (int64_t q = p; q < ends_D[d]; q++) lines += text[q] == '\n';
        int64_t mask = table_for(slots, lines);
        while (p < ends_D[d]) {
            const uint8_t *feed = memchr(text + p, '\n', ends_D[d] - p);
            int64_t stop = feed ? feed - text : ends_D[d], characters = 0, last = stop - 1;
            for (int64_t i = p; i < stop; i++) characters += (text[i] & 0xC0) != 0x80;
            while (last > p && (text[last] & 0xC0) == 0x80) last--;
            uint32_t code = text[last];
            if (code >= 0xC0) {
                int bytes = code < 0xE0 ? 2 : code < 0xF0 ? 3 : 4;
                code &= 0x7F >> bytes;
                for (int i = 1; i < bytes; i++) code = code << 6 | (text[last + i] & 0x3F);
            }
            Slot *slot = slots + slot_of(slots, mask, hash_of(text + p, stop - p));
            out[0]++;
            if (slot->count) out[1]++, out[2] += characters;
            slot->hash = hash_of(text + p, stop - p), slot->count = 1;
            out[3] += stop > p && code < CODES && classes[code] & TERMINAL;
            out[4] += characters <= short_characters;
            out[5] += characters;
            p = stop + 1;
        }
    }
    free(slots);
    return 0;
}
