"""Searches over hyper-parameters: what is asked, which samples are drawn, what became of them, the best."""
