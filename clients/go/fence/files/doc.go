// Package files is the fence of the files in a folder, on a local or shared POSIX file system with flock:
//
//	reports, err := files.Open("/var/reports")
//	…
//	err = reports.Claim(ctx, lease)                       // first: raises the fence
//	text, err := reports.Read(ctx, lease, "/report.csv")
//	err = reports.Append(ctx, lease, "/report.csv", line)
//
// Beside the files the folder has .palisade-lock (flock), .palisade-fence (the state), and while a write is carried out
// .palisade-staged-N. The format is that of the Rust and Python fences: holders in all of these languages may share a folder.
// One rename decides a write together with the fence; after a crash the next operation completes it. All calls block, for
// several syncs.
//
// Code that writes a file without the fence is not stopped: let a separate user own the folder. A file with hard links is put
// whole: an append would change the files of other folders.
//
// It is there on Linux, macOS and FreeBSD.
package files
