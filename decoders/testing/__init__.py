"""Toys to test parts with, for this repository and for packages that bring their own.

`toys` has a target whose every next-token distribution is known, and small drafters; `chance`
walks every way that an answer may fall, so that its distribution is exact; `tokenizers` has
tokenizers of letters and words, and a random Llama over those on disk; `fake_engine` answers
without a model, and `fake_server` as an OpenAI-compatible server. No package imports these.
"""
