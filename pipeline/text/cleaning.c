/* The two cleaning steps that touch every byte: replacing characters and collapsing white space.

   Called by cleaning.py, which owns all buffers and the replacement tables. Since nearly all text is
   unchanged, it is checked and copied 64 bytes at a time, and byte by byte only where something
   changes. */

#include <stdint.h>
#include <string.h>

#define CHUNK 64
#define KEEP 0 /* table entries: KEEP, DELETE, or the replacement */
#define DELETE 1
#define REPLACEMENT 0xFFFD
#define NOT_UTF8 (-1)

/* The length of the character at text[0..left), 0 if it is not valid UTF-8 (RFC 3629). */
static inline int64_t decode(const uint8_t *text, int64_t left, uint32_t *code) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t lead = text[0];
    int64_t size = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (size > left) return 0;
    uint32_t value = size == 1 ? lead : lead & (0x7F >> size);
    for (int64_t i = 1; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (text[i] & 0x3F);
    }
    if (value < least[size] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
    *code = value;
    return size;
}

/* Replaces or deletes characters of `text` according to the tables, which are indexed by the byte,
   by code & 0x7FF and by code for characters of one, two and three bytes; longer ones are kept. `out`
   has the length of `text`. Returns the number of bytes written, and in moved_D and replaced_D the
   end of each document among them and its number of U+FFFD; or NOT_UTF8 if a document is not valid
   UTF-8 by itself. */
int64_t clean_characters(const uint8_t *text, int64_t n, const int64_t *ends_D, int64_t documents,
                         const uint8_t *one, const uint8_t *two, const uint8_t *three,
                         uint8_t *out, int64_t *moved_D, int64_t *replaced_D) {
    int64_t p = 0, written = 0, d = 0;
    memset(replaced_D, 0, documents * sizeof *replaced_D);
    while (p < n) {
        /* copy up to the next character that is not plain ASCII, or a whole chunk */
        int64_t plain = 0;
        if (n - p >= CHUNK) {
            uint8_t odd[CHUNK];
            for (int i = 0; i < CHUNK; i++)
                odd[i] = ((uint8_t)(text[p + i] - ' ') > '~' - ' ') & (text[p + i] != '\n');
            const uint8_t *first = memchr(odd, 1, CHUNK);
            plain = first ? first - odd : CHUNK;
            memcpy(out + written, text + p, CHUNK); /* the bytes after `plain` are overwritten */
        }
        for (; d < documents && ends_D[d] <= p; d++) moved_D[d] = written;
        for (; d < documents && ends_D[d] <= p + plain; d++) moved_D[d] = written + ends_D[d] - p;
        p += plain;
        written += plain;
        /* then character by character up to the next plain one */
        while (p < n && plain < CHUNK) {
            for (; d < documents && ends_D[d] <= p; d++) moved_D[d] = written;
            uint32_t code;
            int64_t size = decode(text + p, (d < documents ? ends_D[d] : n) - p, &code);
            if (!size) return NOT_UTF8;
            uint8_t becomes = size == 1 ? one[code] : size == 2 ? two[code & 0x7FF] : size == 3 ? three[code] : KEEP;
            if (becomes == KEEP) {
                for (int64_t i = 0; i < size; i++) out[written++] = text[p + i];
                if (code == REPLACEMENT && d < documents) replaced_D[d]++;
            } else if (becomes != DELETE) {
                out[written++] = becomes;
            }
            p += size + (code == '\r' && p + 1 < n && text[p + 1] == '\n'); /* CR LF is one line end */
            if (size == 1 && n - p >= CHUNK) break;
        }
    }
    for (; d < documents; d++) moved_D[d] = written;
    return written;
}

/* Collapses each run of white space (spaces and line feeds) in `text` into one line feed if it has
   one, otherwise one space; leading white space is deleted. `out` has the length of `text`. Returns
   the number of bytes written, and in moved_D the end of each document among them. */
int64_t clean_white_space(const uint8_t *text, int64_t n, const int64_t *ends_D, int64_t documents,
                          uint8_t *out, int64_t *moved_D) {
    int64_t p = 0, written = 0, d = 0;
    while (p < n) {
        int64_t stop = n - p < CHUNK ? n : p + CHUNK;
        if (p && stop - p == CHUNK) {
            uint8_t repeated = 0;
            for (int i = 0; i < CHUNK; i++) repeated |= (text[p + i] <= ' ') & (text[p + i - 1] <= ' ');
            if (!repeated) {
                memcpy(out + written, text + p, CHUNK);
                for (; d < documents && ends_D[d] <= stop; d++) moved_D[d] = written + ends_D[d] - p;
                written += CHUNK;
                p = stop;
                continue;
            }
        }
        for (; p < stop; p++) {
            for (; d < documents && ends_D[d] <= p; d++) moved_D[d] = written;
            if (text[p] > ' ') out[written++] = text[p];
            else if (p && text[p - 1] > ' ') out[written++] = text[p];
            else if (text[p] == '\n' && written) out[written - 1] = '\n'; /* the first byte of the run */
        }
    }
    for (; d < documents; d++) moved_D[d] = written;
    return written;
}
