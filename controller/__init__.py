"""Admits jobs to a switch: P4Runtime client, admission state machine and the gRPC service for workers."""
