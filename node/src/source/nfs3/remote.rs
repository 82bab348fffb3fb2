//! [`RemoteSource`] in terms of what the other files do.
//!
//! Owns: which calls have a deadline: those that only ask. Never does: anything else; NFSv3 has no SEEK, no ALLOCATE and no
//! extended attributes.

use async_trait::async_trait;
use bytes::Bytes;

use super::Nfs3Source;
use crate::source::{
    NewObject, ObjectId, SetAttributes, SourceError, SpaceAttributes,
    remote::{
        Changed, Committed, DataRead, DirectoryChange, Health, Made, OnBehalf, Page, Place, RemoteSource, Seen,
        SeenObject, Want, Written,
    },
};

#[async_trait]
impl RemoteSource for Nfs3Source {
    fn health(&self) -> Health {
        if self.engine.is_down() { Health::Down } else { Health::Up }
    }

    async fn root(&self, by: &OnBehalf) -> Result<SeenObject, SourceError> {
        self.engine.asking(self.root_object(by)).await
    }

    async fn look(&self, by: &OnBehalf, place: &Place, want: Want) -> Result<Seen, SourceError> {
        self.engine.asking(self.look_at(by, place, want)).await
    }

    async fn look_many(
        &self,
        by: &OnBehalf,
        places: &[Place],
        want: Want,
    ) -> Result<Vec<Result<Seen, SourceError>>, SourceError> {
        self.engine.asking(self.look_at_many(by, places, want)).await
    }

    async fn parent(&self, by: &OnBehalf, dir: &ObjectId) -> Result<SeenObject, SourceError> {
        self.engine.asking(self.parent_of(by, dir)).await
    }

    async fn read(&self, by: &OnBehalf, file: &ObjectId, offset: u64, count: u32) -> Result<DataRead, SourceError> {
        self.engine.asking(self.read_data(by, file, offset, count)).await
    }

    async fn write(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        offset: u64,
        data: Bytes,
        stable: bool,
    ) -> Result<Written, SourceError> {
        self.write_data(by, file, offset, data, stable).await
    }

    async fn commit(&self, by: &OnBehalf, file: &ObjectId) -> Result<Committed, SourceError> {
        self.commit_data(by, file).await
    }

    async fn set_attributes(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        set: &SetAttributes,
    ) -> Result<Changed, SourceError> {
        self.set_attributes_of(by, file, set).await
    }

    async fn create(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        exclusive: bool,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        self.create_file(by, dir, name, exclusive, set).await
    }

    async fn make(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        name: &[u8],
        object: &NewObject,
        set: &SetAttributes,
    ) -> Result<Made, SourceError> {
        self.make_object(by, dir, name, object, set).await
    }

    async fn link(
        &self,
        by: &OnBehalf,
        file: &ObjectId,
        dir: &ObjectId,
        name: &[u8],
    ) -> Result<DirectoryChange, SourceError> {
        self.link_name(by, file, dir, name).await
    }

    async fn remove(&self, by: &OnBehalf, dir: &ObjectId, name: &[u8]) -> Result<DirectoryChange, SourceError> {
        self.remove_name(by, dir, name).await
    }

    async fn rename(
        &self,
        by: &OnBehalf,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<(DirectoryChange, DirectoryChange), SourceError> {
        self.rename_name(by, from, to).await
    }

    async fn read_link(&self, by: &OnBehalf, link: &ObjectId) -> Result<Bytes, SourceError> {
        self.engine.asking(self.link_text(by, link)).await
    }

    async fn read_directory(
        &self,
        by: &OnBehalf,
        dir: &ObjectId,
        cookie: u64,
        verifier: u64,
        bytes: u32,
    ) -> Result<Page, SourceError> {
        self.engine.asking(self.page(by, dir, cookie, verifier, bytes)).await
    }

    async fn space(&self, by: &OnBehalf, object: &ObjectId) -> Result<SpaceAttributes, SourceError> {
        self.engine.asking(self.space_of(by, object)).await
    }

    async fn close(&self) {
        self.go_away().await;
    }
}
