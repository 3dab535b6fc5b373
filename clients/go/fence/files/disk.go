//go:build linux || darwin || freebsd

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// A disk is the calls to the file system, relative to one open folder. A symbolic link in it is not followed, and what is no
// regular file is an error.
type disk struct{ root *os.Root }

const notFollowed = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func (d disk) openLock() (*os.File, error) {
	return d.root.OpenFile(lockFile, notFollowed|os.O_CREATE|os.O_RDWR, 0o666)
}

// tryLock returns false without an error while another process, or another operation of this one, has the lock.
func tryLock(file *os.File) (bool, error) {
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
			return true, nil
		case syscall.EWOULDBLOCK:
			return false, nil
		case syscall.EINTR:
		default:
			return false, err
		}
	}
}

func (d disk) stat(name string) (fs.FileInfo, error) {
	found, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !found.Mode().IsRegular() {
		err = fmt.Errorf("palisade: %q exists and is not a regular file", name)
	}
	return found, err
}

func (d disk) length(name string) (length int64, exists bool, err error) {
	found, err := d.stat(name)
	if err != nil || found == nil {
		return 0, false, err
	}
	return found.Size(), true, nil
}

// hasOtherNames tells whether a file has hard links: it may be a file of another folder, with another fence, or a fence.
func (d disk) hasOtherNames(name string) bool {
	found, err := d.stat(name)
	if err != nil || found == nil {
		return false
	}
	system, ok := found.Sys().(*syscall.Stat_t)
	return ok && system.Nlink > 1
}

// read returns nil without an error if there is no such file.
func (d disk) read(name string) ([]byte, error) {
	if _, exists, err := d.length(name); err != nil || !exists {
		return nil, err
	}
	file, err := d.root.OpenFile(name, notFollowed|os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if content == nil {
		content = []byte{}
	}
	return content, err
}

// write writes a file from its start and syncs it, with the permissions of the file like, if that exists.
func (d disk) write(name string, content []byte, like string) error {
	return d.change(name, os.O_TRUNC, func(file *os.File) error {
		if like != "" {
			found, err := d.stat(like)
			if err == nil && found != nil {
				err = file.Chmod(found.Mode().Perm())
			}
			if err != nil {
				return err
			}
		}
		_, err := file.Write(content)
		return err
	})
}

// writeAt makes a file end with these bytes at this offset, whatever followed it before, and syncs it.
func (d disk) writeAt(name string, content []byte, offset int64) error {
	return d.change(name, 0, func(file *os.File) error {
		if err := file.Truncate(offset); err != nil {
			return err
		}
		_, err := file.WriteAt(content, offset)
		return err
	})
}

func (d disk) change(name string, flags int, work func(*os.File) error) error {
	file, err := d.root.OpenFile(name, notFollowed|os.O_CREATE|os.O_WRONLY|flags, 0o666)
	if err != nil {
		return err
	}
	err = work(file)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (d disk) remove(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d disk) names() ([]string, error) {
	folder, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return folder.Readdirnames(-1)
}

func (d disk) syncNames() error {
	folder, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// inTheWay names the processes that have the lock of a file, as Linux lists them in /proc, and the command that ends them.
// One in another container or on another machine is not listed.
func inTheWay(file *os.File, folder string) string {
	var names []string
	for _, process := range holders(file) {
		if name := lookAt(process); name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "the process that has its lock cannot be found out from here"
	}
	if absolute, err := filepath.Abs(folder); err == nil {
		folder = absolute
	}
	return fmt.Sprintf("%s has its lock: let it go on, or end it with: palisade fence unblock %s --url file://%s --yes",
		strings.Join(names, " and "), filepath.Base(folder), filepath.Dir(folder))
}

// holders reads lines like "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF"; one with "->" is a process that waits.
func holders(file *os.File) (processes []int) {
	found, err := file.Stat()
	if err != nil {
		return nil
	}
	system, ok := found.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	device := uint64(system.Dev)
	major, minor := device>>8&0xfff|device>>32&^0xfff, device&0xff|device>>12&^0xff
	place := fmt.Sprintf("%02x:%02x:%d", major, minor, system.Ino)
	locks, _ := os.ReadFile("/proc/locks")
	for _, line := range strings.Split(string(locks), "\n") {
		words := strings.Fields(line)
		if len(words) != 8 || words[1] != "FLOCK" || words[5] != place {
			continue
		}
		if process, err := strconv.Atoi(words[4]); err == nil && process > 0 {
			processes = append(processes, process)
		}
	}
	sort.Ints(processes)
	return processes
}

func lookAt(process int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	if err != nil {
		return ""
	}
	// The name is in parentheses, and may contain some.
	at := strings.LastIndex(string(stat), ") ")
	if at < 0 {
		return ""
	}
	_, name, _ := strings.Cut(string(stat[:at]), " (")
	stopped := ""
	if after := string(stat[at+2:]); strings.HasPrefix(after, "T") || strings.HasPrefix(after, "t") {
		stopped = ", stopped"
	}
	return fmt.Sprintf("process %d (%s%s)", process, name, stopped)
}
