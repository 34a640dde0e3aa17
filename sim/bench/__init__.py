"""`switchreduce bench`: what the system costs, each figure a ratio against a reference timed in the same run.

`rows` holds the data, `measure` times contenders in turns, `codec`, `switch` and `wire` are the parts,
`table`, `report` and `chart` show the rows.
"""
