"""Which language a text is in, by its script and its commonest words.

In:  some thousand characters.
Out: a language, or a script where several languages share it. A guess, for a person to read.
"""

import re
import unicodedata
from collections import Counter

COMMON_WORDS = {
    "English": "the of and to in that is was for with",
    "German": "der die und das nicht ist von den mit ein",
    "French": "le la les et des est dans que pour une",
    "Spanish": "el los las una que por con para del como",
    "Italian": "il che di della per con una sono gli non",
    "Portuguese": "os uma que não para com do da em mais",
    "Dutch": "de het een van en dat niet zijn met voor",
    "Polish": "nie się jest na że do jak ale tak przez",
    "Swedish": "och att det som en på är av för med",
    "Turkish": "ve bir bu için ile olarak çok daha gibi olan",
}
LEAST_SHARE = 0.04
"""Of its words a text must have among a language's ten commonest; English text has a quarter."""


def language(text: str) -> str:
    """The language that `text` seems to be in; `no text` if there are no letters."""
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    if not scripts:
        return "no text"
    script, _ = scripts.most_common(1)[0]
    if script != "Latin":
        return f"{script} script"
    words = re.findall(r"\w+", text.lower())
    counts = Counter(words)
    found = {
        name: sum(counts[word] for word in common.split()) for name, common in COMMON_WORDS.items()
    }
    best = max(found, key=lambda name: found[name])
    return best if found[best] > LEAST_SHARE * len(words) else "another language"


def _script(letter: str) -> str:
    """The first word of the character's Unicode name, which is its script."""
    return unicodedata.name(letter, "unnamed").partition(" ")[0].capitalize()
