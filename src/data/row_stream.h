/* row_stream.h: rows that are encoded while the run trains on them.
 *
 * Large files of rows, and standard input, are not read to their end before the first step. The
 * text is cut into windows: a window ends with the first row that makes it at least `window` bytes
 * long, and may span several files. The rows of a window are encoded and packed like a small data
 * set (examples.h, packing.h). The first window is encoded on opening and stays; held-out rows come
 * from it. A thread encodes the others shortly before they are needed, and a few of them are kept.
 *
 * The order depends only on the data, the seed, the sequence length and the window size. The first
 * epoch takes windows in order, later ones in an order drawn from the seed; the sequences of a
 * window are shuffled in each epoch. With one window, the order is that of data that is read whole.
 *
 * A checkpoint stores where the known windows begin, how many sequences each has, and a hash of its
 * text. A resumed run therefore continues at its window without reading those before it, and
 * notices if the text has changed. */
#pragma once

#include "base/json.h"
#include "data/packing.h"

#define HY_STREAM_LEAST ((uint64_t)256 << 20) /* bytes of rows from which they are streamed */

#define HY_STREAM_CACHED 8 /* encoded windows that are kept, besides the first */

typedef struct hy_row_stream hy_row_stream;

/* Encodes the first window of the files into `first`, which the caller owns and packs. Takes over
 * the list, also on failure. `size` is the number of bytes of text, estimated; 0: not known. */
hy_status hy_row_stream_open(hy_file_list *list, uint64_t size, const hy_encoding *encoding,
                             hy_examples *first, hy_row_stream **out);
/* Before the first fill: the packed first window, which must stay valid. */
hy_status hy_row_stream_begin(hy_row_stream *stream, const hy_packing *first);
void hy_row_stream_stop(hy_row_stream *stream); /* ends waiting calls of fill with an error */
void hy_row_stream_close(hy_row_stream *stream);

/* Fills in sequence n of the endless order, and waits until its window is encoded. Thread-safe.
 * Returns how many targets count, or the number of pairs, or -1 with an error message. */
int64_t hy_row_stream_fill(hy_row_stream *stream, uint64_t n, int32_t seq, int32_t *tokens,
                           int32_t *targets, int32_t *doc_starts);

/* How often an epoch of data is larger than the first window; 1 if that is all, 0: not known. */
double hy_row_stream_scale(const hy_row_stream *stream);
/* The number of epochs that n sequences are: by the estimate of an epoch's sequences until the
 * first epoch is over. NaN: not known. */
double hy_row_stream_epochs(hy_row_stream *stream, uint64_t n, double estimate);
/* The rows that were read so far; `warnings` gets those that were not returned before. */
void hy_row_stream_count(hy_row_stream *stream, hy_examples *counts, hy_text *warnings);

bool hy_row_stream_awaits_input(const hy_row_stream *stream); /* standard input has not ended */
/* Stores standard input in the folder, if that is what is streamed, as soon as it ends. */
hy_status hy_row_stream_keep(const hy_row_stream *stream, const char *folder);

/* The known windows, as an object in a list. */
void hy_row_stream_write(hy_row_stream *stream, hy_json_writer *w);
/* HY_ERR_INPUT: the object is damaged, or the text is not that of the checkpoint. */
hy_status hy_row_stream_read(hy_row_stream *stream, const hy_json_node *node);
