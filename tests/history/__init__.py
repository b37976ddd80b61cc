"""A black-box check of the whole system: clients note what they did, a checker says what cannot have happened.

load + nemesis --> history (JSON Lines) --> rules --> verdict, report
"""
