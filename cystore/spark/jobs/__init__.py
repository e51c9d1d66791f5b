"""Jobs over whole stores: `python -m cystore.spark JOB`, or a function that is given a session. One module each."""
