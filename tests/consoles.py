"""Stands for the console: remembers what was said."""


class Console:
    def __init__(self):
        self.said = []
        self.complaints = []

    def say(self, text):
        self.said.append(text)

    def complain(self, text):
        self.complaints.append(text)
