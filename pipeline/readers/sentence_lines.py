"""Google's input format: one sentence a line, a blank line between documents.

In:  files as create_pretraining_data.py reads them (reference: create_pretraining_data.py:179-206).
Out: documents whose sentences are given and are not cut again.
"""

from pipeline.readers.blank_line_text import read
from pipeline.readers.documents import Reader

READER = Reader(read=read, line_break="sentence", splittable=True)
