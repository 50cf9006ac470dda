"""Places where one answer at a time is written: who it is for, and what is known from before."""
