"""One group of one topic. Only `group` changes its state.

commands     what may be asked            events      what happened
states       the table of transitions     selection   which messages a pull gets
lease        what a consumer holds        retry       what is to be tried again
shards       ordered topics               seek        moved positions
snapshot     as a document, and back; replay behind damage
parts, ranges   sets of messages          message_status   the life of one
"""
