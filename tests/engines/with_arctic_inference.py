"""What suffix decoding drafts of random texts; run in an environment that has `arctic-inference`
and not this project.

python with_arctic_inference.py: of random conversations, as JSON: for each request its prompt and
its rounds, [newest tokens, most, draft].
"""

import json
from random import Random

from arctic_inference.suffix_decoding import SuffixDecodingCache


def main() -> None:
    chance, found = Random(0), []
    for _ in range(50):
        size, cache = chance.choice([2, 3, 5, 10, 40]), SuffixDecodingCache(24, 10000)
        requests = []
        for name in range(6):
            prompt = [chance.randrange(size) for _ in range(chance.randrange(1, 60))]
            cache.start_request(name, prompt)
            text, rounds = list(prompt), []
            for _ in range(25):
                count = chance.randrange(1, 6)
                start = chance.randrange(len(text))
                new = text[start : start + count] if chance.random() < 0.5 else []
                new = new or [chance.randrange(size) for _ in range(count)]
                text += new
                cache.add_active_response(name, new)
                most = chance.choice([2, 8, 24])
                draft = cache.speculate(
                    name, text[-24:], max_spec_tokens=most, max_spec_factor=1.0, min_token_prob=0.1
                )
                rounds.append([new, most, list(draft.token_ids)])
            cache.stop_request(name)
            requests.append([prompt, rounds])
        found.append(requests)
    print("\n" + json.dumps(found))


main()
