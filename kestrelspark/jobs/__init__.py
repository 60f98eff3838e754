"""The Spark jobs: each module has a function that takes a Spark session and returns a result."""
