"""The lake's tables: what the log says, checked again and put in order by Spark (DESIGN.md, "The pipeline")."""
