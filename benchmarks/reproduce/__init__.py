"""The results of Huang et al. (Context-Aware Assistant Selection) on the models that ship.

`records` says what a reproduction is, `t5` and `llama` declare them with the paper's figures,
`registry` names them, `run` does them through the package's own collect, policies and benchmark,
and `page` sets what came out beside the paper. `make reproduce TABLE=table-1` runs one.
"""
