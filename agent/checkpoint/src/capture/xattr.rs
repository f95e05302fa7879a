//! Extended attributes of an open file or directory.

use std::os::fd::AsFd;

use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

use crate::format::Xattrs;

/// The most that the kernel gives as a list or as a value.
const MAX: usize = 64 << 10;

/// The attributes that can be read, and whether all could.
pub(crate) fn read(fd: impl AsFd) -> (Xattrs, bool) {
    let mut small = [0; 1024];
    let list = match flistxattr(&fd, &mut small[..]) {
        Ok(0) | Err(Errno::NOTSUP | Errno::NOSYS) => return (Xattrs::default(), true),
        Ok(length) => small[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = Vec::with_capacity(MAX);
            match flistxattr(&fd, rustix::buffer::spare_capacity(&mut large)) {
                Ok(_) => large,
                Err(_) => return (Xattrs::default(), false),
            }
        }
        Err(_) => return (Xattrs::default(), false),
    };
    let (mut xattrs, mut complete) = (Xattrs::default(), true);
    for name in list.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(MAX);
        match fgetxattr(&fd, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => {
                value.shrink_to_fit();
                xattrs.0.insert(name.to_vec(), value);
            }
            // Removed in between: then it is not there.
            Err(Errno::NODATA) => {}
            Err(_) => complete = false,
        }
    }
    (xattrs, complete)
}
