"""`bench allreduce`: whole calls against torch.distributed's Gloo, in turns, in the same processes.

`plan` says what the ranks do and holds what they found, `rank` is the program of one rank, `fabric` is where
they run (loopback, network namespaces), `part` makes rows of it, `profile` a picture of where the time goes.
"""
