"""What other engines draft without a model, rule by rule, to be replayed along logs."""
