"""A query on Spark from the outside: started, watched, stopped."""
