/* The two steps of cleaning that touch every byte: which characters stay, and how much white space.

   Called by cleaning.py, which owns every buffer that crosses the border and the tables of what
   becomes of a character. Nearly all text stays as it is, so 64 bytes at a time are looked at and
   copied; they are taken one by one only where there is something to do. */

#include <stdint.h>
#include <string.h>

#define CHUNK 64
#define KEEP 0 /* in the tables: the character stays; otherwise its replacement, or DELETE for none */
#define DELETE 1
#define REPLACEMENT 0xFFFD
#define NOT_UTF8 (-1)

/* The length of the character at text[0..left), 0 if there is no valid one (RFC 3629). */
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

/* `text` with its characters replaced or left out as the tables say (of characters of one byte by
   that, of two by code & 0x7FF, of three by code; longer ones stay), into `out`, which is as long.
   Returns the bytes written; moved_D are the documents' ends among them, replaced_D how many U+FFFD
   each has. NOT_UTF8 where a document is no valid UTF-8 by itself. */
int64_t clean_characters(const uint8_t *text, int64_t n, const int64_t *ends_D, int64_t documents,
                         const uint8_t *one, const uint8_t *two, const uint8_t *three,
                         uint8_t *out, int64_t *moved_D, int64_t *replaced_D) {
    int64_t p = 0, written = 0, d = 0;
    memset(replaced_D, 0, documents * sizeof *replaced_D);
    while (p < n) {
        /* up to the next character that is not plain ASCII, or a whole chunk */
        int64_t plain = 0;
        if (n - p >= CHUNK) {
            uint8_t odd[CHUNK];
            for (int i = 0; i < CHUNK; i++)
                odd[i] = ((uint8_t)(text[p + i] - ' ') > '~' - ' ') & (text[p + i] != '\n');
            const uint8_t *first = memchr(odd, 1, CHUNK);
            plain = first ? first - odd : CHUNK;
            memcpy(out + written, text + p, CHUNK); /* what is not plain is overwritten */
        }
        for (; d < documents && ends_D[d] <= p; d++) moved_D[d] = written;
        for (; d < documents && ends_D[d] <= p + plain; d++) moved_D[d] = written + ends_D[d] - p;
        p += plain;
        written += plain;
        /* the characters up to the next plain one, one by one */
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
            p += size + (code == '\r' && p + 1 < n && text[p + 1] == '\n'); /* one line end, not two */
            if (size == 1 && n - p >= CHUNK) break;
        }
    }
    for (; d < documents; d++) moved_D[d] = written;
    return written;
}

/* `text`, whose only white space is the space and the line feed, with every run of it made one line
   feed if it has one, else a space; white space at the beginning goes. Into `out`, which is as long;
   returns the bytes written, and in moved_D the documents' ends among them. */
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
            else if (text[p] == '\n' && written) out[written - 1] = '\n'; /* the run's first byte stands there */
        }
    }
    for (; d < documents; d++) moved_D[d] = written;
    return written;
}
