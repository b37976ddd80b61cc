"""Benchmarks: `make bench`. Each figure says what it measured, how often, and what it should reach.

registry   which benchmarks there are          machine   what it ran on, and who else was busy
effort     how long and how often              load      cheap HTTP clients over raw sockets
session    one go: folders, service, samples   peers     Kafka, RocketMQ and Redis in the same go
figure     a result; targets: what is asked    report    the table and the JSON file
"""
