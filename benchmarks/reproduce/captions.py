"""Captions of imagined pictures with their German, put together from parts of both languages.

The T5 family was trained on captions of photographs. These are of the same kind and ours to ship.
"""

from __future__ import annotations

import random
from itertools import product

from collect.queries import Query

WHO = (
    ("A man in a red jacket", "Ein Mann in einer roten Jacke"),
    ("A woman wearing a hat", "Eine Frau mit Hut"),
    ("A little girl in a pink dress", "Ein kleines Mädchen in einem rosa Kleid"),
    ("A boy with blond hair", "Ein Junge mit blonden Haaren"),
    ("An old man with a white beard", "Ein alter Mann mit einem weißen Bart"),
    ("A young woman in blue jeans", "Eine junge Frau in Jeans"),
    ("A man wearing sunglasses", "Ein Mann mit Sonnenbrille"),
    ("A child in a yellow raincoat", "Ein Kind in einem gelben Regenmantel"),
    ("A worker in an orange vest", "Ein Arbeiter in einer orangen Weste"),
    ("A girl with a backpack", "Ein Mädchen mit einem Rucksack"),
    ("A man in a black suit", "Ein Mann in einem schwarzen Anzug"),
    ("A woman with curly hair", "Eine Frau mit lockigem Haar"),
    ("A teenager in a green shirt", "Ein Jugendlicher in einem grünen Hemd"),
    ("An elderly woman", "Eine ältere Frau"),
)
DOING = (
    ("is riding a bicycle", "fährt Fahrrad"),
    ("is reading a book", "liest ein Buch"),
    ("is playing the guitar", "spielt Gitarre"),
    ("is eating an ice cream", "isst ein Eis"),
    ("is playing with a brown dog", "spielt mit einem braunen Hund"),
    ("is talking on a cellphone", "telefoniert mit einem Handy"),
    ("is taking a picture", "macht ein Foto"),
    ("is holding a red umbrella", "hält einen roten Regenschirm"),
    ("is kicking a soccer ball", "schießt einen Fußball"),
    ("is selling fruit", "verkauft Obst"),
    ("is drinking a cup of coffee", "trinkt eine Tasse Kaffee"),
    ("is pushing a stroller", "schiebt einen Kinderwagen"),
    ("is painting a picture", "malt ein Bild"),
    ("is jumping in the air", "springt in die Luft"),
    ("is feeding the birds", "füttert die Vögel"),
    ("is carrying a large box", "trägt eine große Kiste"),
)
WHERE = (
    ("in a park", "in einem Park"),
    ("on the beach", "am Strand"),
    ("on a busy street", "auf einer belebten Straße"),
    ("in front of a building", "vor einem Gebäude"),
    ("near a lake", "in der Nähe eines Sees"),
    ("at a market", "auf einem Markt"),
    ("on a wooden bench", "auf einer Holzbank"),
    ("in the snow", "im Schnee"),
    ("next to a white car", "neben einem weißen Auto"),
    ("in a grassy field", "auf einer Wiese"),
    ("under a large tree", "unter einem großen Baum"),
    ("on a bridge", "auf einer Brücke"),
)
HELD_OUT = 4  # of what is done, the last so many come in test captions alone
PREFIX = "translate English to German: "


def captions(split: str, limit: int) -> list[Query]:
    """The first `limit` in a fixed random order; those of the test do other things than those of
    the training."""
    doing = DOING[-HELD_OUT:] if split == "test" else DOING[:-HELD_OUT]
    found = list(product(WHO, doing, WHERE))
    random.Random(0).shuffle(found)
    return [
        Query(
            id=f"captions-{split}-{number:04d}",
            task="translation",
            category=None,
            turns=(f"{PREFIX}{who[0]} {does[0]} {where[0]}.",),
            reference=f"{who[1]} {does[1]} {where[1]}.",
            source="draftpick",
        )
        for number, (who, does, where) in enumerate(found[:limit], 1)
    ]
