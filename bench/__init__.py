"""The benchmark: everhold beside the floor and its peers, doing the same work.

`python -m bench` runs everything. Each contender is a process of its own that does one slice of
work when asked (`speak.py`), so that slices of all of them alternate on the same machine in the
same minute (`stage.py`). What is measured is in `measures/`, what should be reached is in
`target.py`, and nothing is judged elsewhere.
"""
