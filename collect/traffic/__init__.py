"""Prompts and answers that another engine logged, in tokens, with what every arm would have done
along them: no target and no GPU is needed."""
