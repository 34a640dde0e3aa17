"""Topologies of real network namespaces and veth pairs, built with Mininet. Needs Linux and root."""
