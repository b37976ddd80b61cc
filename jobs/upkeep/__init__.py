"""Jobs that look after the files of partitions: retention and verification."""
