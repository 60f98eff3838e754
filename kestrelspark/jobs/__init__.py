"""What runs on Spark: each module is a job with a function that takes a session and gives back what it found."""
