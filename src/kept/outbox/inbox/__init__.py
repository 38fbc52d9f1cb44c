"""The inbox: a consumer behind a broker handles each event once, however often it is delivered."""
