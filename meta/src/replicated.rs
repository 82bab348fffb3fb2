//! The state core as the group's: the same commands, rows and replies, in the group's words.
//!
//! Never does: judging; that is the core's.

use crate::{
    raft::{self, Core},
    state::{self, Command, Reply, State, Table},
};

impl From<state::Damaged> for raft::Damaged {
    fn from(damaged: state::Damaged) -> Self {
        raft::Damaged::new(damaged.to_string())
    }
}

impl From<state::NotEncoded> for raft::Damaged {
    fn from(error: state::NotEncoded) -> Self {
        raft::Damaged::new(error.to_string())
    }
}

impl Core for State {
    type Command = Command;
    type Reply = Reply;

    fn apply(&mut self, command: &Command, changes: &mut raft::Changes) -> Reply {
        let mut rows = state::Changes::default();
        let reply = State::apply(self, command, &mut rows);
        for row in rows.take() {
            match row.value {
                Some(value) => changes.put(row.table as u8, row.key, value),
                None => changes.delete(row.table as u8, row.key),
            }
        }
        reply
    }

    fn load(&mut self, table: u8, key: &[u8], value: &[u8]) -> Result<(), raft::Damaged> {
        Ok(State::load(self, table, key, value)?)
    }

    fn is_resident(table: u8) -> bool {
        // A table that is unknown is loaded, so that it is found to be.
        Table::from_number(table).is_none_or(Table::is_resident)
    }

    fn encode_command(command: &Command) -> Vec<u8> {
        command.encode()
    }

    fn decode_command(bytes: &[u8]) -> Result<Command, raft::Damaged> {
        Ok(Command::decode(bytes)?)
    }

    fn encode_reply(reply: &Reply) -> Vec<u8> {
        reply.encode()
    }

    fn decode_reply(bytes: &[u8]) -> Result<Reply, raft::Damaged> {
        Ok(Reply::decode(bytes)?)
    }
}
